// The names of devices and precisions on the command line and of dtypes on the screen.

#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <string>
#include <vector>

namespace examples {

inline std::vector<std::string> precisions() { return {"fp32", "fp16", "bf16"}; }

inline c10::Device device_of(const std::string& name) {
  const c10::Device device(name);
  TORCH_CHECK(!device.is_cuda() || torch::cuda::is_available(), "no CUDA device is available");
  return device;
}

inline c10::ScalarType dtype_of(const std::string& precision) {
  if (precision == "fp32") {
    return c10::ScalarType::Float;
  }
  if (precision == "fp16") {
    return c10::ScalarType::Half;
  }
  if (precision == "bf16") {
    return c10::ScalarType::BFloat16;
  }
  TORCH_CHECK_VALUE(false, "unknown precision '", precision, "'");
}

/// The name Python gives a dtype: "float16" rather than "Half".
inline std::string name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

}  // namespace examples
