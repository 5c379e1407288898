#include "grad_scaler/gradients.h"

#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include <algorithm>

namespace torchamp::detail {

namespace {

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

}  // namespace

FoundInf unscale_gradients(at::TensorList grads, const at::Tensor& scale, bool scale_is_inverse,
                           const std::optional<at::Tensor>& found_inf) {
  FoundInf flags;
  const auto unscale_on = [&](const at::Device& device, at::TensorList on_device) {
    const auto options = scale.options().device(device);
    flags.emplace_back(device, found_inf ? found_inf->to(options, /*non_blocking=*/true,
                                                         /*copy=*/true)
                                         : at::zeros({}, options));
    unscale_(on_device, flags.back().second, scale.to(device, /*non_blocking=*/true),
             scale_is_inverse);
  };
  if (grads.empty()) {
    return flags;
  }
  const at::Device first = grads.front().device();
  if (std::all_of(grads.begin(), grads.end(),
                  [first](const at::Tensor& grad) { return grad.device() == first; })) {
    unscale_on(first, grads);  // the usual case, without copying the list
    return flags;
  }
  for (const auto& [device, on_device] : split_by_device(grads)) {
    unscale_on(device, on_device);
  }
  return flags;
}

void update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                  std::vector<at::Tensor> found_infs, double growth_factor, double backoff_factor,
                  int64_t growth_interval) {
  for (at::Tensor& found_inf : found_infs) {
    found_inf = found_inf.to(scale.device(), /*non_blocking=*/true);
  }
  update_scale_(scale, growth_tracker, found_infs, growth_factor, backoff_factor, growth_interval);
}

bool any_found_inf(const FoundInf& flags) {
  return std::any_of(flags.begin(), flags.end(),
                     [](const auto& flag) { return flag.second.template item<float>() != 0.0f; });
}

}  // namespace torchamp::detail
