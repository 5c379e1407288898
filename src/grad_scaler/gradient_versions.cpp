#include "grad_scaler/gradient_versions.h"

#include <algorithm>

namespace torchamp::detail {

namespace {

void add_version(const at::Tensor& parameter, GradientVersions& versions) {
  if (const at::Tensor& grad = parameter.grad(); grad.defined()) {
    versions.emplace_back(weak(grad),
                          grad.is_inference() ? 0u : static_cast<uint32_t>(grad._version()));
  }
}

}  // namespace

WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }

std::vector<WeakTensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<WeakTensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      parameters.push_back(weak(parameter));
    }
  }
  return parameters;
}

GradientVersions versions_of(const std::vector<WeakTensor>& parameters) {
  GradientVersions versions;
  for (const WeakTensor& parameter : parameters) {
    if (auto alive = parameter.lock()) {
      add_version(at::Tensor(std::move(alive)), versions);
    }
  }
  return versions;
}

// A weak pointer keeps the address from being used again, so that addresses can be compared.
bool are_same(const GradientVersions& before, const GradientVersions& now) {
  return std::equal(before.begin(), before.end(), now.begin(), now.end(),
                    [](const auto& one, const auto& other) {
                      return one.first == other.first && one.second == other.second;
                    });
}

}  // namespace torchamp::detail
