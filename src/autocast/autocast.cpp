#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torchamp/autocast.h>

namespace torchamp {

namespace {

/// Whether autocast can do anything here with these options; says why in a warning if not.
bool usable(at::DeviceType device, at::ScalarType dtype) {
  if (device == at::kCUDA) {
    if (!at::hasCUDA()) {
      TORCH_WARN_ONCE(
          "torchamp: autocast for CUDA was asked for, but CUDA is not available. "
          "Nothing is cast.");
      return false;
    }
    return true;
  }
  if (dtype != at::kBFloat16 && dtype != at::kHalf) {
    TORCH_WARN("torchamp: autocast on ", device, " supports BFloat16 and Half, not ", dtype,
               ". Nothing is cast.");
    return false;
  }
  return true;
}

}  // namespace

AutocastState::AutocastState(at::DeviceType device, at::ScalarType dtype, bool enabled,
                             bool cache_enabled)
    : cache_enabled_(cache_enabled) {
  add(device, dtype, enabled);
}

void AutocastState::add(at::DeviceType device, at::ScalarType dtype, bool enabled) {
  devices_.at(count_++) = {device, dtype, enabled};
}

AutocastState AutocastState::capture() {
  AutocastState state;
  for (const at::DeviceType device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    state.add(device, at::autocast::get_autocast_dtype(device),
              at::autocast::is_autocast_enabled(device));
  }
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

AutocastGuard::AutocastGuard(at::DeviceType device, AutocastOptions options) {
  TORCH_CHECK(at::autocast::is_autocast_available(device),
              "torchamp: autocast does not exist for device type ", device);
  const at::ScalarType dtype = options.dtype().value_or(at::autocast::get_autocast_dtype(device));
  begin({device, dtype, options.enabled() && usable(device, dtype),
         options.cache_enabled().value_or(at::autocast::is_autocast_cache_enabled())});
}

AutocastGuard::AutocastGuard(const AutocastState& state) { begin(state); }

AutocastGuard::~AutocastGuard() { end(); }

void AutocastGuard::begin(const AutocastState& next) {
  previous_.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  for (std::size_t i = 0; i < next.count_; ++i) {
    const auto& [device, dtype, enabled] = next.devices_[i];
    const at::ScalarType previous_dtype = at::autocast::get_autocast_dtype(device);
    previous_.add(device, previous_dtype, at::autocast::is_autocast_enabled(device));
    drops_casts_ = drops_casts_ || dtype != previous_dtype;
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(next.cache_enabled_);
  if (at::autocast::increment_nesting() > 1 && drops_casts_) {
    at::autocast::clear_cache();
  }
  active_ = true;
}

void AutocastGuard::end() {
  if (!active_) {
    return;
  }
  active_ = false;
  if (at::autocast::decrement_nesting() == 0 || drops_casts_) {
    at::autocast::clear_cache();
  }
  for (std::size_t i = 0; i < previous_.count_; ++i) {
    const auto& [device, dtype, enabled] = previous_.devices_[i];
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
  at::autocast::set_autocast_cache_enabled(previous_.cache_enabled_);
}

void AutocastGuard::refresh() { at::autocast::clear_cache(); }

}  // namespace torchamp
