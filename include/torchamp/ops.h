#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/export.h>

#include <optional>

namespace torchamp {

/// Divides gradients by the scale, in place, and looks for overflows:
/// `grads[i] *= 1 / scale`, and `found_inf = 1` if any result is infinite or NaN.
///
/// One job over the whole list: any number of strided tensors on one device, of float16, bfloat16,
/// float32, float64 and their complex forms in any mix, of any shape, with or without gaps between
/// elements. A tensor that is in the list twice is unscaled once. Products are formed in float32
/// (float64 tensors: in float64) and rounded once.
///
/// \param grads     modified in place; their version counters stay as they are. When the inverse is
///                  exactly 1 they are only read.
/// \param found_inf float32, one element, on the gradients' device. Set to 1 on overflow, otherwise
///                  left alone: start from 0.
/// \param scale     float32, one element, on the gradients' device.
/// \param scale_is_inverse `scale` holds 1 / scale already, as PyTorch's own operator has it.
///
/// Does not synchronise. Throws c10::Error for other devices, dtypes, layouts, and for a tensor
/// that overlaps itself (expanded, say); nothing was changed then.
TORCHAMP_API void unscale_(at::TensorList grads, const at::Tensor& found_inf,
                           const at::Tensor& scale, bool scale_is_inverse = false);

/// Divides gradients by the scale and clips them to a largest 2-norm, in place, as one job: reads
/// them once for norm and overflow, then multiplies each by
/// `1 / scale * min(1, max_norm / (norm + 1e-6))`. The norm is that of the true (unscaled) gradients
/// of the whole list; the factor is formed in float64, and finite gradients never become zeros
/// because their squares overflow.
///
/// After an overflow, or if the factor is exactly 1, gradients are left as they are.
///
/// \param grads     as in `unscale_`.
/// \param found_inf as in `unscale_`. If it is set already, that counts as an overflow.
/// \param scale     as in `unscale_`; none: the gradients are unscaled already.
/// \param max_norm  not negative. Infinity only unscales.
/// \return the norm before clipping, within 1e-6 of its exact value: float64 (float32 on devices that
///         have no float64), 0-dim, on the gradients' device. It may be finite after an overflow: the flag
///         tells.
///
/// Does not synchronise. Throws as `unscale_` does.
TORCHAMP_API at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                                        const std::optional<at::Tensor>& scale, double max_norm);

/// Adapts the scale to what was found, in place: after an overflow it is multiplied by
/// `backoff_factor`, after `growth_interval` calls in a row without one by `growth_factor`
/// (unless that would not be finite). The rule of PyTorch's `_amp_update_scale_`, except that
/// growth also fires when `growth_tracker` is above the interval already.
///
/// \param scale          float32, one element.
/// \param growth_tracker int32, one element: calls in a row without an overflow.
/// \param found_infs     at least one; float32, one element each, on the scale's device. An overflow
///                       in any of them (not zero) counts.
///
/// Does not synchronise. Throws c10::Error for other shapes, dtypes or devices.
TORCHAMP_API void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                                at::TensorList found_infs, double growth_factor,
                                double backoff_factor, int64_t growth_interval);

}  // namespace torchamp
