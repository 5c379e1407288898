#include "ops/gradient_list.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/irange.h>

#include <algorithm>

namespace torchamp::detail {

namespace {

/// What the kernels see of a tensor's dtype: complex numbers are pairs.
struct ElementType {
  common::DType dtype;
  int64_t per_element;  // 0: not a dtype of gradients
};

ElementType element_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return {common::DType::kFloat32, 1};
    case at::kHalf:
      return {common::DType::kFloat16, 1};
    case at::kBFloat16:
      return {common::DType::kBFloat16, 1};
    case at::kDouble:
      return {common::DType::kFloat64, 1};
    case at::kComplexFloat:
      return {common::DType::kFloat32, 2};
    case at::kComplexDouble:
      return {common::DType::kFloat64, 2};
    case at::kComplexHalf:
      return {common::DType::kFloat16, 2};
    default:
      return {common::DType::kFloat32, 0};
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

// The metadata of small tensors is spread all over the memory, and reading it is what a list of them
// waits for: it is prefetched so many places ahead.
constexpr std::size_t kAhead = 8;

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

void prefetch(const void* object) {
#if defined(__GNUC__)
  __builtin_prefetch(object);
  __builtin_prefetch(static_cast<const char*>(object) + 56);  // objects may begin late in a line
#endif
}

/// tensor.mutable_data_ptr() without a virtual call; materialises a copy-on-write tensor as that does.
/// For strided tensors that are not empty.
void* mutable_data_of(const at::Tensor& tensor, c10::ScalarType dtype) {
  c10::StorageImpl* storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr) {
    return tensor.mutable_data_ptr();  // throws
  }
  const auto offset = tensor.storage_offset() * static_cast<int64_t>(c10::elementSize(dtype));
  return static_cast<char*>(storage->mutable_data()) + offset;
}

/// Of two tensors at the same address.
bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

}  // namespace

void check_gradient(const at::Tensor& grad, std::size_t index) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      grad.layout() == at::kStrided, "torchamp::unscale_ not implemented for layout ",
      grad.layout(), " (gradient ", index, "): hand in the values of a sparse gradient instead");
  TORCH_CHECK_NOT_IMPLEMENTED(
      element_type(grad.scalar_type()).per_element != 0, "torchamp::unscale_ not implemented for '",
      grad.scalar_type(), "' (gradient ", index, "): gradients must be floating-point or complex");
  TORCH_CHECK(grad.is_non_overlapping_and_dense() || grad.numel() == 0 || !overlaps_itself(grad),
              "torchamp: gradient ", index, " of shape ", grad.sizes(), " and strides ",
              grad.strides(),
              " has more than one element at the same memory location (an expanded tensor?), so it "
              "cannot be unscaled in place. Please clone() it first.");
}

#ifndef NDEBUG
// Two gradients that share a part of their memory would be multiplied there by two threads at once.
// Looking for it costs more than unscaling a small tensor: only debug builds do.
void check_disjoint(const common::ChunkTable& table) {
  std::vector<std::pair<const char*, const char*>> ranges;
  for (const common::ChunkEntry& entry : table.entries()) {
    const auto* begin = static_cast<const char*>(entry.data);
    ranges.emplace_back(begin, begin + entry.numel * static_cast<int64_t>(size_of(entry.dtype)));
  }
  std::sort(ranges.begin(), ranges.end());
  for (const auto i : c10::irange(std::size_t{1}, ranges.size())) {
    TORCH_CHECK(ranges[i].first >= ranges[i - 1].second,
                "torchamp: two gradients share a part of their memory");
  }
}
#endif

GradientList::GradientList(at::TensorList grads) : table_(grads.size()) {
  for (const auto i : c10::irange(grads.size())) {
    if (i + 2 * kAhead < grads.size()) {
      prefetch(grads[i + 2 * kAhead].unsafeGetTensorImpl());
      prefetch(storage_of(grads[i + kAhead]));
    }
    const at::Tensor& grad = grads[i];
    const c10::ScalarType dtype = grad.scalar_type();
    const ElementType type = element_type(dtype);
    if (type.per_element == 0 || grad.layout() != at::kStrided ||
        !grad.is_non_overlapping_and_dense()) {
      add_unusual(grad, i);
    } else if (const int64_t numel = grad.numel(); numel != 0) {
      table_.add(mutable_data_of(grad, dtype), numel * type.per_element, type.dtype);
    }
  }
#ifndef NDEBUG
  check_disjoint(table_);
#endif
}

void GradientList::add_unusual(const at::Tensor& grad, std::size_t index) {
  check_gradient(grad, index);
  if (grad.numel() != 0 && !is_known_view(grad)) {
    const ElementType type = element_type(grad.scalar_type());
    gapped_at_.emplace(grad.const_data_ptr(), gapped_.size());
    gapped_.emplace_back(grad, grad.contiguous());
    table_.add(gapped_.back().second.mutable_data_ptr(), grad.numel() * type.per_element,
               type.dtype);
  }
}

/// Of tensors with gaps, whose copies have addresses of their own.
bool GradientList::is_known_view(const at::Tensor& grad) const {
  const auto [first, last] = gapped_at_.equal_range(grad.const_data_ptr());
  return std::any_of(first, last, [&](const auto& entry) {
    return is_same_view(gapped_[entry.second].first, grad);
  });
}

void GradientList::write_back() const {
  // As for dense tensors: no autograd, and version counters stay.
  const at::AutoDispatchBelowADInplaceOrView data_only;
  for (const auto& [grad, dense] : gapped_) {
    grad.copy_(dense);
  }
}

}  // namespace torchamp::detail
