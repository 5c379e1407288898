#pragma once

#include <torch/torch.h>

#include <initializer_list>
#include <vector>

#include "catch.h"

// Test cases that run on every device of the machine: `ON_EACH_DEVICE();` as their first line, and
// tensors from the functions below instead of those of namespace torch.

namespace on_device {

inline std::vector<at::Device> devices() {
  std::vector<at::Device> found{at::kCPU};
  if (torch::cuda::is_available()) {
    found.emplace_back(at::kCUDA, 0);
  }
  return found;
}

/// The device of this pass of the running test case; the CPU in all others.
inline at::Device& current() {
  static at::Device device{at::kCPU};
  return device;
}

class Pass {
 public:
  explicit Pass(const at::Device& device) { current() = device; }
  ~Pass() { current() = at::kCPU; }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
};

/// The options with this pass's device, unless they name one.
inline at::TensorOptions here(const at::TensorOptions& options = {}) {
  return options.has_device() ? options : options.device(current());
}

inline at::Tensor ones(at::IntArrayRef sizes, const at::TensorOptions& options = {}) {
  return torch::ones(sizes, here(options));
}

inline at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options = {}) {
  return torch::zeros(sizes, here(options));
}

inline at::Tensor full(at::IntArrayRef sizes, const at::Scalar& value,
                       const at::TensorOptions& options = {}) {
  return torch::full(sizes, value, here(options));
}

/// The same numbers on every device.
inline at::Tensor randn(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::randn(sizes, dtype).to(current());
}

inline at::Tensor tensor(std::initializer_list<float> values) {
  return torch::tensor(at::ArrayRef<float>(values)).to(current());
}

inline at::Tensor indices(std::initializer_list<int64_t> values) {
  return torch::tensor(at::ArrayRef<int64_t>(values)).to(current());
}

}  // namespace on_device

#define ON_EACH_DEVICE()                                                            \
  const on_device::Pass on_device_pass(GENERATE(from_range(on_device::devices()))); \
  INFO("on " << on_device::current())
