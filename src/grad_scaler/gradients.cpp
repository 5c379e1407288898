#include "grad_scaler/gradients.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/irange.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <limits>

#include "ops/checks.h"
#include "ops/gradient_list.h"

namespace torchamp::detail {

namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

using DeviceGradients = std::vector<std::pair<at::Device, std::vector<at::Tensor>>>;

DeviceGradients split_by_device(at::TensorList grads) {
  DeviceGradients split;
  for (const at::Tensor& grad : grads) {
    auto same = std::find_if(split.begin(), split.end(),
                             [&grad](const auto& entry) { return entry.first == grad.device(); });
    if (same == split.end()) {
      same = split.insert(split.end(), {grad.device(), {}});
    }
    same->second.push_back(grad);
  }
  return split;
}

bool on_one_device(at::TensorList grads) {
  return std::all_of(grads.begin(), grads.end(), [&grads](const at::Tensor& grad) {
    return grad.device() == grads.front().device();
  });
}

/// Calls `visit(device, gradients)` for each device; in the usual case without copying the list. Of
/// several devices the whole list is checked first: nothing is written if one of them refuses.
template <typename Visit>
void for_each_device(at::TensorList grads, const Visit& visit) {
  if (grads.empty()) {
    return;
  }
  if (on_one_device(grads)) {
    visit(grads.front().device(), grads);
    return;
  }
  for (const auto i : c10::irange(grads.size())) {
    check_gradient(grads[i], i);
  }
  for (const auto& [device, on_device] : split_by_device(grads)) {
    visit(device, at::TensorList(on_device));
  }
}

at::Tensor new_flag(const at::Device& device) {
  if (device.is_cpu()) {  // without two calls of the dispatcher
    at::Tensor flag = at::detail::empty_cpu({}, at::kFloat);
    *flag.mutable_data_ptr<float>() = 0;
    return flag;
  }
  return at::zeros({}, at::TensorOptions(at::kFloat).device(device));
}

/// For autograd, which must not use what it saved before: as PyTorch's operators do.
void bump_version(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

/// The flag of a device, which is made if there is none.
at::Tensor flag_of(FoundInf& flags, const at::Device& device) {
  const auto known = std::find_if(flags.begin(), flags.end(),
                                  [&device](const auto& flag) { return flag.first == device; });
  return known == flags.end() ? flags.emplace_back(device, new_flag(device)).second : known->second;
}

Clipped clip_on_one_device(at::TensorList grads, const std::optional<at::Tensor>& scale,
                           double max_norm, const FoundInf& known) {
  const at::Device device = grads.front().device();
  Clipped result{{}, known};
  result.norm =
      clip_grad_norm_(grads, flag_of(result.found_inf, device),
                      scale ? std::optional(on_device(*scale, device)) : std::nullopt, max_norm);
  return result;
}

/// Over several devices: norm and flags of the gradients as they are, then one factor for all.
/// Unlike on one device, a gradient that only unscales to infinity is no overflow if clipping makes
/// it finite.
Clipped clip_across_devices(at::TensorList grads, const std::optional<at::Tensor>& scale,
                            double max_norm, const FoundInf& known) {
  const at::Device home = grads.front().device();
  const at::Tensor inverse = scale ? on_device(*scale, home).reciprocal().reshape({})
                                   : at::ones({}, grads.front().options().dtype(at::kFloat));
  const at::Tensor collapsed = inverse.isfinite().logical_not();
  Clipped result{{}, known};
  std::vector<at::Tensor> norms;
  at::Tensor overflow = collapsed;
  for_each_device(grads, [&](const at::Device& device, at::TensorList list) {
    const at::Tensor flag = flag_of(result.found_inf, device);
    norms.push_back(on_device(clip_grad_norm_(list, flag, std::nullopt, kNoLimit), home));
    flag.logical_or_(on_device(collapsed, device));
    overflow = overflow.logical_or(on_device(flag, home));
  });
  result.norm = at::linalg_vector_norm(at::stack(norms)) * inverse.abs();
  const at::Tensor clipped = inverse * (max_norm / (result.norm + 1e-6)).clamp_max(1.0);
  const at::Tensor factor = at::where(overflow, 1.0, clipped).to(at::kFloat);
  for_each_device(grads, [&](const at::Device& device, at::TensorList list) {
    unscale_(list, flag_of(result.found_inf, device), on_device(factor, device),
             /*scale_is_inverse=*/true);
  });
  return result;
}

}  // namespace

at::Tensor on_device(const at::Tensor& tensor, const at::Device& device, bool copy) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu(), copy);
}

FoundInf unscale_gradients(at::TensorList grads, const at::Tensor& scale, bool scale_is_inverse,
                           const std::optional<at::Tensor>& found_inf) {
  FoundInf flags;
  for_each_device(grads, [&](const at::Device& device, at::TensorList list) {
    flags.emplace_back(device,
                       found_inf ? on_device(*found_inf, device, /*copy=*/true) : new_flag(device));
    unscale_(list, flags.back().second, on_device(scale, device), scale_is_inverse);
  });
  return flags;
}

Clipped clip_gradients(at::TensorList grads, const std::optional<at::Tensor>& scale,
                       double max_norm, const FoundInf& known) {
  check_max_norm(max_norm);  // which the operator is not called with for an empty list, or several
  if (grads.empty()) {
    const auto options = scale ? scale->options() : at::TensorOptions();
    return {at::zeros({}, options.dtype(at::kDouble)), known};
  }
  const Clipped result = on_one_device(grads) ? clip_on_one_device(grads, scale, max_norm, known)
                                              : clip_across_devices(grads, scale, max_norm, known);
  std::for_each(grads.begin(), grads.end(), bump_version);
  return result;
}

void update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                  std::vector<at::Tensor> found_infs, double growth_factor, double backoff_factor,
                  int64_t growth_interval) {
  for (at::Tensor& found_inf : found_infs) {
    found_inf = on_device(found_inf, scale.device());
  }
  update_scale_(scale, growth_tracker, found_infs, growth_factor, backoff_factor, growth_interval);
  bump_version(scale);
}

bool any_found_inf(const FoundInf& flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [](const auto& flag) { return flag.second.template item<float>() != 0.0f; });
}

}  // namespace torchamp::detail
