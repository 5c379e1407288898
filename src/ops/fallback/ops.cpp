#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <set>
#include <utility>

#include "ops/checks.h"
#include "ops/gradient_list.h"

// The operators by composition of ATen's, for devices without a kernel of ours and for CUDA in a
// build without CUDA kernels. Slower (a few launches a tensor), same results.

namespace torchamp::fallback {

namespace {

/// What tells that two tensors of a list are the same memory: address and bytes, or for tensors
/// without an address the tensor itself.
std::pair<const void*, int64_t> identity(const at::Tensor& tensor) {
  const void* address = tensor.has_storage() ? tensor.const_data_ptr() : nullptr;
  return address == nullptr ? std::pair<const void*, int64_t>{tensor.unsafeGetTensorImpl(), -1}
                            : std::pair{address, tensor.numel() * tensor.element_size()};
}

/// Half types are multiplied in float and rounded once, as in the kernels: a tensor operand of
/// their own type could not hold a small inverse scale.
void multiply_(const at::Tensor& grad, const at::Tensor& inverse) {
  switch (grad.scalar_type()) {
    case at::kHalf:
    case at::kBFloat16:
      grad.copy_(grad.to(at::kFloat).mul_(inverse));
      break;
    case at::kComplexHalf:
      grad.copy_(grad.to(at::kComplexFloat).mul_(inverse));
      break;
    default:
      grad.mul_(inverse);
  }
}

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  detail::check_unscale(grads, found_inf, scale);
  for (const auto i : c10::irange(grads.size())) {
    detail::check_gradient(grads[i], i);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor inverse = (scale_is_inverse ? scale : scale.reciprocal()).reshape({});
  std::set<std::pair<const void*, int64_t>> done;
  for (const at::Tensor& tensor : grads) {
    if (tensor.numel() == 0 || !done.insert(identity(tensor)).second) {
      continue;
    }
    const at::Tensor grad = tensor.detach();  // its version counter is of no interest to autograd
    multiply_(grad, inverse);
    found_inf.logical_or_(at::isfinite(grad).all().logical_not());
  }
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
  const at::NoGradGuard no_grad;
  at::Tensor overflow = found_infs[0].ne(0).reshape({});
  for (const at::Tensor& found_inf : found_infs.slice(1)) {
    overflow = overflow.logical_or(found_inf.ne(0).reshape({}));
  }
  // PyTorch's own operator grows at tracker == interval only; let it never be above.
  growth_tracker.clamp_max_(growth_interval - 1);
  at::Tensor scale_out = scale;
  at::Tensor tracker_out = growth_tracker;
  at::_amp_update_scale_(scale_out, tracker_out, overflow.to(at::kFloat), growth_factor,
                         backoff_factor, growth_interval);
}

TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  m.impl("unscale_", &unscale_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::fallback
