#include "ops/gradient_list.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <optional>

namespace torchamp::detail {

namespace {

/// What the kernels see of a tensor's dtype: complex numbers are pairs.
struct ElementType {
  common::DType dtype;
  int64_t per_element;
};

std::optional<ElementType> element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return ElementType{common::DType::kFloat32, 1};
    case at::kHalf:
      return ElementType{common::DType::kFloat16, 1};
    case at::kBFloat16:
      return ElementType{common::DType::kBFloat16, 1};
    case at::kDouble:
      return ElementType{common::DType::kFloat64, 1};
    case at::kComplexFloat:
      return ElementType{common::DType::kFloat32, 2};
    case at::kComplexDouble:
      return ElementType{common::DType::kFloat64, 2};
    case at::kComplexHalf:
      return ElementType{common::DType::kFloat16, 2};
    default:
      return std::nullopt;
  }
}

/// Whether two different index tuples of the tensor reach the same element.
bool overlaps_itself(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<int64_t> dims;
  for (const auto d : c10::irange(tensor.dim())) {
    if (sizes[d] > 1) {
      dims.push_back(d);
    }
  }
  std::sort(dims.begin(), dims.end(),
            [&](int64_t a, int64_t b) { return strides[a] < strides[b]; });
  // Steps of each dimension larger than everything the smaller ones reach: no overlap. This is so
  // for every view that slicing, transposing and splitting make.
  int64_t reach = 0;
  bool nested = true;
  for (const int64_t d : dims) {
    nested = nested && strides[d] > reach;
    reach += (sizes[d] - 1) * strides[d];
  }
  if (nested) {
    return false;
  }
  // Interleaved strides, made by as_strided only: mark every element that is reached.
  std::vector<bool> seen(static_cast<std::size_t>(reach) + 1, false);
  std::vector<int64_t> position(dims.size(), 0);
  for (int64_t count = 0, offset = 0; count < tensor.numel(); ++count) {
    if (seen[static_cast<std::size_t>(offset)]) {
      return true;
    }
    seen[static_cast<std::size_t>(offset)] = true;
    for (std::size_t k = 0; k < dims.size(); ++k) {
      offset += strides[dims[k]];
      if (++position[k] < sizes[dims[k]]) {
        break;
      }
      offset -= sizes[dims[k]] * strides[dims[k]];
      position[k] = 0;
    }
  }
  return false;
}

}  // namespace

void check_gradient(const at::Tensor& grad, std::size_t index) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      grad.layout() == at::kStrided, "torchamp::unscale_ not implemented for layout ",
      grad.layout(), " (gradient ", index, "): hand in the values of a sparse gradient instead");
  TORCH_CHECK_NOT_IMPLEMENTED(
      element_type(grad.scalar_type()), "torchamp::unscale_ not implemented for '",
      grad.scalar_type(), "' (gradient ", index, "): gradients must be floating-point or complex");
  TORCH_CHECK(grad.is_non_overlapping_and_dense() || grad.numel() == 0 || !overlaps_itself(grad),
              "torchamp: gradient ", index, " of shape ", grad.sizes(), " and strides ",
              grad.strides(),
              " has more than one element at the same memory location (an expanded tensor?), so it "
              "cannot be unscaled in place. Please clone() it first.");
}

GradientList::GradientList(at::TensorList grads) : table_(grads.size()) {
  for (const auto i : c10::irange(grads.size())) {
    check_gradient(grads[i], i);
    add(grads[i]);
  }
}

void GradientList::add(const at::Tensor& grad) {
  const ElementType type = *element_type(grad.scalar_type());
  const int64_t numel = grad.numel() * type.per_element;
  if (numel == 0) {
    return;
  }
  if (grad.is_non_overlapping_and_dense()) {
    table_.add(grad.mutable_data_ptr(), numel, type.dtype);
  } else {
    gapped_.emplace_back(grad, grad.contiguous());
    table_.add(gapped_.back().second.mutable_data_ptr(), numel, type.dtype);
  }
}

void GradientList::write_back() const {
  for (const auto& [grad, dense] : gapped_) {
    grad.copy_(dense);
  }
}

}  // namespace torchamp::detail
