#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/checks.h"

// Meta tensors have no data: the operators check their arguments, and that is all. The norm is
// float64, as everywhere but on devices that have none.

namespace torchamp::meta {

namespace {

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool /*scale_is_inverse*/) {
  detail::check_unscale(grads, found_inf, scale);
}

at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                           const std::optional<at::Tensor>& scale, double max_norm) {
  detail::check_clip(grads, found_inf, scale, max_norm);
  return at::empty({}, found_inf.options().dtype(at::kDouble));
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double /*growth_factor*/, double /*backoff_factor*/,
                   int64_t /*growth_interval*/) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
}

TORCH_LIBRARY_IMPL(torchamp, Meta, m) {
  m.impl("unscale_", &unscale_);
  m.impl("clip_grad_norm_", &clip_grad_norm_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::meta
