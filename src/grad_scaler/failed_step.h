#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <vector>

// Is the next call for an optimizer whose step threw another try, or of the next iteration?

namespace torchamp::detail {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;

/// Of an undefined tensor too.
WeakTensor weak(const at::Tensor& tensor);

/// What gradients an optimizer had when its step threw; none of it is kept alive.
///
/// New gradient tensors mean a new iteration, untouched ones another try. Gradients that were
/// written to are told by when: what happens before the next loss is scaled is done to unscaled
/// gradients, and only a backward pass makes them scaled ones again.
class FailedStep {
 public:
  explicit FailedStep(const torch::optim::Optimizer& optimizer);

  /// A loss is scaled: of this iteration still, or of the next one.
  void note_scale();

  /// Whether a new iteration began. Throws c10::Error if gradients may be a mixture of unscaled and
  /// scaled ones.
  [[nodiscard]] bool is_over() const;

 private:
  struct Gradients {
    std::vector<WeakTensor> tensors;  // undefined where a parameter has none
    std::vector<uint32_t> versions;
  };
  [[nodiscard]] Gradients gradients() const;

  std::vector<WeakTensor> parameters_;
  Gradients at_failure_;
  std::optional<std::vector<uint32_t>> versions_at_scale_;
};

}  // namespace torchamp::detail
