#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/common/chunk_table.h"

namespace torchamp::detail {

/// Throws c10::Error for a tensor that cannot be unscaled in place: another layout than strided, a
/// dtype that is neither floating-point nor complex, or one that overlaps itself, where one element
/// would be multiplied several times. `index` is its place in the list, for the message.
void check_gradient(const at::Tensor& grad, std::size_t index);

/// A list of gradients as the kernels take it: the dense memory of each tensor.
///
/// A tensor with gaps between its elements is worked on in a dense copy; `write_back` brings the
/// result home. Building the list changes nothing, so that every check comes before any write.
class GradientList {
 public:
  /// Throws c10::Error as `check_gradient` does.
  explicit GradientList(at::TensorList grads);

  [[nodiscard]] const common::ChunkTable& table() const { return table_; }

  /// Copies the results of tensors with gaps into them. Call it after the kernel.
  void write_back() const;

 private:
  /// Anything but a dense tensor of a dtype that is known.
  void add_unusual(const at::Tensor& grad, std::size_t index);

  [[nodiscard]] bool is_known_view(const at::Tensor& grad) const;

  common::ChunkTable table_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gapped_;        // the tensor, its dense copy
  std::unordered_multimap<const void*, std::size_t> gapped_at_;  // address to place in gapped_
};

}  // namespace torchamp::detail
