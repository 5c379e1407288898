#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

// Argument checks of the operators. Every backend kernel calls them first: a call through the
// dispatcher does not pass the C++ functions of ops.h.

namespace torchamp::detail {

/// Scale and flag of `unscale_`, and that all gradients are on their device.
void check_unscale(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale);

/// A limit of `clip_grad_norm_`.
void check_max_norm(double max_norm);

/// The same as `check_unscale` for `clip_grad_norm_`, and its limit.
void check_clip(at::TensorList grads, const at::Tensor& found_inf,
                const std::optional<at::Tensor>& scale, double max_norm);

void check_update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                        at::TensorList found_infs);

}  // namespace torchamp::detail
