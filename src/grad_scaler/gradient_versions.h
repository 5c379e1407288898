#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <utility>
#include <vector>

// Are these the gradients that an optimizer had before? Tells another try of a failed step from the
// next iteration.

namespace torchamp::detail {

using WeakTensor = c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl>;

WeakTensor weak(const at::Tensor& tensor);

std::vector<WeakTensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Gradients at some time, without keeping them alive: which tensors, and at which version.
using GradientVersions = std::vector<std::pair<WeakTensor, uint32_t>>;

/// Of those parameters that exist still.
GradientVersions versions_of(const std::vector<WeakTensor>& parameters);

/// Whether they are the same tensors, and nothing was written to them in between.
bool are_same(const GradientVersions& before, const GradientVersions& now);

}  // namespace torchamp::detail
