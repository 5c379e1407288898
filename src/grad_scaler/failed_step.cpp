#include "grad_scaler/failed_step.h"

#include <utility>

namespace torchamp::detail {

namespace {

uint32_t version_of(const at::Tensor& grad) {
  return grad.defined() && !grad.is_inference() ? static_cast<uint32_t>(grad._version()) : 0;
}

}  // namespace

WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }

FailedStep::FailedStep(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameters_.push_back(weak(parameter));
    }
  }
  at_failure_ = gradients();
}

void FailedStep::note_scale() {
  if (!versions_at_scale_) {
    versions_at_scale_ = gradients().versions;
  }
}

bool FailedStep::is_over() const {
  const Gradients now = gradients();
  // A weak pointer keeps an address from being used again, so that addresses can be compared.
  if (now.tensors != at_failure_.tensors) {
    return true;
  }
  if (!versions_at_scale_ || now.versions == *versions_at_scale_) {
    return false;
  }
  TORCH_CHECK(
      *versions_at_scale_ != at_failure_.versions,
      "torchamp: the step of this optimizer threw, and its gradients were written to after "
      "another loss was scaled: they may be sums of unscaled and scaled ones. Set gradients "
      "to zero before the loss of the next iteration is scaled, or end this one with "
      "update().");
  return true;  // they were set to zero, and added to since
}

FailedStep::Gradients FailedStep::gradients() const {
  Gradients found;
  for (const WeakTensor& reference : parameters_) {
    auto alive = reference.lock();
    const at::Tensor grad = alive ? at::Tensor(std::move(alive)).grad() : at::Tensor();
    found.tensors.push_back(weak(grad));
    found.versions.push_back(version_of(grad));
  }
  return found;
}

}  // namespace torchamp::detail
