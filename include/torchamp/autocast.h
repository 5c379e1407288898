#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/arg.h>
#include <torchamp/export.h>

#include <array>
#include <cstddef>
#include <optional>

namespace torchamp {

/// Options of an autocast region.
struct AutocastOptions {
  /// Data type that matrix products, convolutions and the like run in. Unset: the device's current
  /// autocast dtype (by default float16 on CUDA, bfloat16 on the CPU).
  TORCH_ARG(std::optional<at::ScalarType>, dtype) = std::nullopt;
  /// False makes a region in which nothing is cast.
  TORCH_ARG(bool, enabled) = true;
  /// Whether casts of weights are kept until the region ends. Unset: as in the surrounding region.
  TORCH_ARG(std::optional<bool>, cache_enabled) = std::nullopt;
};

/// The autocast settings of one thread: for every device type whether autocast is on and with which
/// dtype, and whether casts are cached. Autocast is thread-local; a new thread starts with autocast
/// off and the default dtypes. Carry the state over explicitly:
///
/// ```cpp
/// auto state = torchamp::AutocastState::capture();
/// std::thread worker([&] {
///   torchamp::AutocastGuard autocast(state);
///   model->forward(x);
/// });
/// ```
class TORCHAMP_API AutocastState {
 public:
  /// The settings of the calling thread.
  [[nodiscard]] static AutocastState capture();

  /// Settings for one device type, taken as they are: nothing is checked or warned about.
  AutocastState(at::DeviceType device, at::ScalarType dtype, bool enabled, bool cache_enabled);

 private:
  friend class AutocastGuard;

  struct PerDevice {
    at::DeviceType device;
    at::ScalarType dtype;
    bool enabled;
  };

  AutocastState() = default;
  void add(at::DeviceType device, at::ScalarType dtype, bool enabled);

  // In place, no allocation: guards are made in every iteration.
  std::array<PerDevice, 16> devices_{};
  std::size_t count_ = 0;
  bool cache_enabled_ = true;
};

/// A region in which operators run in a lower precision where that is safe: LibTorch's form of
/// Python's `with torch.autocast(...)`.
///
/// ```cpp
/// torch::Tensor loss;
/// {
///   torchamp::AutocastGuard autocast(torch::kCUDA);
///   loss = criterion(model->forward(x), target);
/// }
/// loss.backward();  // backward runs outside; it uses the dtypes of the forward pass
/// ```
///
/// The guard saves enabled flag, dtype and cache flag of the calling thread and restores them when
/// it ends, also when an exception passes. Guards nest; they must end in reverse order and on the
/// thread that made them. Casts of weights are cached and dropped when the outermost region ends,
/// and when a nested region changes the dtype (a cached cast has the old one). The cache is ATen's,
/// one for all threads: threads that use the same weights in regions at the same time, with another
/// dtype or while the weights are updated, need `AutocastOptions().cache_enabled(false)`.
class TORCHAMP_API AutocastGuard {
 public:
  /// Throws c10::Error if autocast does not exist for this device type. A dtype that the device's
  /// autocast does not know (anything but float16 and bfloat16 outside CUDA), or CUDA where there
  /// is none, gives a warning and a region without casts, as in Python.
  [[nodiscard]] explicit AutocastGuard(at::DeviceType device, AutocastOptions options = {});

  /// Applies the settings that `AutocastState::capture` took, here or on another thread.
  [[nodiscard]] explicit AutocastGuard(const AutocastState& state);

  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

  /// Ends the region now instead of at the end of the scope. Further calls do nothing.
  void end();

  /// Drops cached casts: call it after replacing a weight's data inside the region.
  void refresh();

 private:
  void begin(const AutocastState& next);

  AutocastState previous_;    // of the devices that this region sets
  bool drops_casts_ = false;  // the region's dtype differs from its surroundings'
  bool active_ = false;
};

/// A region in which autocast does nothing, on any device, up to an AutocastGuard inside it: for code
/// that manages dtypes itself.
/// LibTorch's form of Python's `torch._C._DisableAutocast`.
class TORCHAMP_API DisableAutocastGuard {
 public:
  [[nodiscard]] DisableAutocastGuard() = default;
  DisableAutocastGuard(const DisableAutocastGuard&) = delete;
  DisableAutocastGuard& operator=(const DisableAutocastGuard&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard exclude_{c10::autocast_dispatch_keyset};
};

}  // namespace torchamp
