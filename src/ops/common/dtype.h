#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/common/host_device.h"

// Element types that the kernels know, without any torch header. Complex tensors are handed to the
// kernels as twice as many elements of their real type.

namespace torchamp::common {

enum class DType : uint8_t { kFloat32, kFloat64, kFloat16, kBFloat16 };

/// Storage of one IEEE binary16 number.
struct Half {
  uint16_t bits;
};

/// Storage of one bfloat16 number.
struct BFloat16 {
  uint16_t bits;
};

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    default:
      return 2;
  }
}

template <typename To, typename From>
TORCHAMP_HOST_DEVICE inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace torchamp::common
