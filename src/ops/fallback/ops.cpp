#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ops/checks.h"
#include "ops/gradient_list.h"

// The operators by composition of ATen's, for devices without a kernel of ours and for CUDA in a
// build without CUDA kernels. Slower, same results. Below autograd, and versions stay, as in the
// kernels.

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
  if (grad.scalar_type() == at::kHalf || grad.scalar_type() == at::kBFloat16) {
    grad.copy_(grad.to(at::kFloat).mul_(inverse));
  } else {
    grad.mul_(inverse);
  }
}

/// A complex tensor as pairs of real numbers: multiplied as a complex number, infinity times a real
/// factor would become NaN in the other part.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.is_conj() ? tensor.conj() : tensor) : tensor;
}

/// The tensors that an operator works on: checked, none without elements, each piece of memory
/// once.
std::vector<at::Tensor> checked(at::TensorList grads) {
  for (const auto i : c10::irange(grads.size())) {
    detail::check_gradient(grads[i], i);
  }
  std::vector<at::Tensor> once;
  std::set<std::pair<const void*, int64_t>> seen;
  for (const at::Tensor& grad : grads) {
    if (grad.numel() > 0 && seen.insert(identity(grad)).second) {
      once.push_back(as_real(grad.detach()));  // detached: its version is of no interest
    }
  }
  return once;
}

/// Whether PyTorch has an operator that unscales whole lists on the device.
bool has_list_operator(const at::Tensor& on_device) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("aten::_amp_foreach_non_finite_check_and_unscale_", "")
      .hasKernelForDispatchKey(c10::legacyExtractDispatchKey(on_device.key_set()));
}

/// What that operator takes everywhere.
bool is_taken(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf;
}

void unscale_list_(at::TensorList same_dtype, at::Tensor found_inf, const at::Tensor& inverse) {
  at::_amp_foreach_non_finite_check_and_unscale_(same_dtype, found_inf, inverse);
  // It looks at the inputs. An inverse of 1 makes it look at the results, which may have overflowed.
  at::_amp_foreach_non_finite_check_and_unscale_(same_dtype, found_inf, at::ones_like(inverse));
}

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  detail::check_unscale(grads, found_inf, scale);
  const at::AutoDispatchBelowADInplaceOrView data_only;
  const at::Tensor inverse = (scale_is_inverse ? scale : scale.reciprocal()).reshape({});
  const bool by_list = has_list_operator(found_inf);
  std::map<at::ScalarType, std::vector<at::Tensor>> lists;
  for (const at::Tensor& grad : checked(grads)) {
    if (by_list && is_taken(grad.scalar_type())) {
      lists[grad.scalar_type()].push_back(grad);
    } else {
      multiply_(grad, inverse);
      found_inf.logical_or_(at::isfinite(grad).all().logical_not());
    }
  }
  for (const auto& [dtype, list] : lists) {
    unscale_list_(list, found_inf, inverse);
  }
}

/// The 2-norm of the whole list. Numbers are divided by the largest before they are squared, so that
/// no square overflows or vanishes.
at::Tensor norm_of(at::TensorList grads, const at::TensorOptions& options) {
  if (grads.empty()) {
    return at::zeros({}, options);
  }
  std::vector<at::Tensor> wide;
  for (const at::Tensor& grad : grads) {
    wide.push_back(grad.to(options.dtype()));
  }
  constexpr double kMaximum = std::numeric_limits<double>::infinity();
  const at::Tensor largest = at::stack(at::_foreach_norm(wide, kMaximum)).amax();
  const at::Tensor unit = at::where(largest.gt(0) & largest.isfinite(), largest, 1.0);
  const auto divided = at::_foreach_div(wide, unit);
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(divided, 2.0))) * unit;
}

at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                           const std::optional<at::Tensor>& scale, double max_norm) {
  detail::check_clip(grads, found_inf, scale, max_norm);
  const at::AutoDispatchBelowADInplaceOrView data_only;
  const std::vector<at::Tensor> once = checked(grads);
  const at::Tensor inverse =
      scale ? scale->reciprocal().reshape({}) : at::ones({}, found_inf.options());
  std::vector<at::Tensor> unscaled;
  for (const at::Tensor& grad : once) {
    unscaled.push_back(grad.clone());
    multiply_(unscaled.back(), inverse);
    found_inf.logical_or_(at::isfinite(unscaled.back()).all().logical_not());
  }
  // Some devices have no float64.
  const auto precision = found_inf.is_mps() ? at::kFloat : at::kDouble;
  const at::Tensor norm = norm_of(unscaled, found_inf.options().dtype(precision));
  const at::Tensor clipped = inverse * (max_norm / (norm + 1e-6)).clamp_max(1.0);
  const at::Tensor factor = at::where(found_inf.reshape({}).ne(0), 1.0, clipped);
  for (const at::Tensor& grad : once) {
    multiply_(grad, factor);
  }
  return norm;
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
  const at::AutoDispatchBelowADInplaceOrView data_only;
  at::Tensor overflow = found_infs[0].ne(0).reshape({});
  for (const at::Tensor& found_inf : found_infs.slice(1)) {
    overflow = overflow.logical_or(found_inf.ne(0).reshape({}));
  }
  // PyTorch's own operator grows at tracker == interval only; let it never be above.
  if (growth_interval > 0) {
    growth_tracker.clamp_max_(growth_interval - 1);
  }
  at::Tensor scale_out = scale;
  at::Tensor tracker_out = growth_tracker;
  at::_amp_update_scale_(scale_out, tracker_out, overflow.to(at::kFloat), growth_factor,
                         backoff_factor, growth_interval);
}

TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  m.impl("unscale_", &unscale_);
  m.impl("clip_grad_norm_", &clip_grad_norm_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::fallback
