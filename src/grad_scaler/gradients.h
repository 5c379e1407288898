#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/export.h>

#include <optional>
#include <utility>
#include <vector>

// The stateless core of the GradScaler, under its C++ and its Python face.

namespace torchamp::detail {

/// One overflow flag for each device that has gradients: float32, 0-dim, 0 or 1.
using FoundInf = std::vector<std::pair<at::Device, at::Tensor>>;

/// Unscales a list of gradients that may be spread over devices. `scale` may live on another device
/// than the gradients. Sparse COO gradients must come as their values. The flags start as copies of
/// `found_inf` (float32) if one is given, else as 0.
TORCHAMP_API FoundInf unscale_gradients(at::TensorList grads, const at::Tensor& scale,
                                        bool scale_is_inverse = false,
                                        const std::optional<at::Tensor>& found_inf = std::nullopt);

/// What `clip_gradients` found.
struct Clipped {
  at::Tensor norm;  // 2-norm of the true gradients before clipping, float64, 0-dim
  FoundInf found_inf;
};

/// Unscales a list of gradients that may be spread over devices, and clips them to a largest 2-norm
/// of all: `clip_grad_norm_` of ops.h. Without a scale they are unscaled already, and `known` holds
/// the flags of that. After an overflow gradients are left as they are.
TORCHAMP_API Clipped clip_gradients(at::TensorList grads, const std::optional<at::Tensor>& scale,
                                    double max_norm, const FoundInf& known = {});

/// Adapts the scale to the flags, which may live on other devices: `update_scale_` of ops.h.
TORCHAMP_API void update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                               std::vector<at::Tensor> found_infs, double growth_factor,
                               double backoff_factor, int64_t growth_interval);

/// A copy on the device, or the tensor itself if it is there and `copy` is false. To the CPU it waits
/// for the copy: a kernel there reads it at once, and no stream orders the two.
TORCHAMP_API at::Tensor on_device(const at::Tensor& tensor, const at::Device& device,
                                  bool copy = false);

/// Whether any flag is set. Synchronises with each device.
TORCHAMP_API bool any_found_inf(const FoundInf& flags);

}  // namespace torchamp::detail
