#pragma once

#include <cstdint>

#include "ops/common/dtype.h"
#include "ops/common/host_device.h"

#if defined(__CUDA_ARCH__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

// The element rule of unscaling, for one element of each type: multiply by the inverse scale (in
// float, in double for float64), round once, and tell whether the result is finite. The test is
// made on bits, so no compiler flag can remove it. Testing the result alone also finds every
// non-finite input: an infinity or NaN stays one of the two under any multiplication.

namespace torchamp::common {

TORCHAMP_HOST_DEVICE inline float to_float(BFloat16 value) {
  return bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
TORCHAMP_HOST_DEVICE inline BFloat16 to_bfloat16(float value) {
#if defined(__CUDA_ARCH__)
  return bit_cast<BFloat16>(__float2bfloat16_rn(value));  // one instruction from sm_80 on
#else
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((bits >> 16) | 0x0040u)};
  }
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

TORCHAMP_HOST_DEVICE inline float to_float(Half value) {
#if defined(__CUDA_ARCH__)
  return __half2float(bit_cast<__half>(value));
#else
  // Shift exponent and mantissa into float's places, then let one multiplication by 2^112 rebias
  // the exponent; it also normalises subnormals. Infinity and NaN need float's largest exponent.
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) {
    return bit_cast<float>(sign | magnitude | 0x7f800000u);
  }
  const float rebiased = bit_cast<float>(magnitude) * 0x1p112f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(rebiased));
#endif
}

/// Rounds to nearest, ties to even; NaN stays NaN.
TORCHAMP_HOST_DEVICE inline Half to_half(float value) {
#if defined(__CUDA_ARCH__)
  return bit_cast<Half>(__float2half_rn(value));
#else
  const uint32_t bits = bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x01ffu))};
  }
  if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    return {static_cast<uint16_t>(sign | 0x7c00u)};
  }
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, which adding 0.5 rounds to
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
#endif
}

TORCHAMP_HOST_DEVICE inline float multiplied(float value, float factor) { return value * factor; }
TORCHAMP_HOST_DEVICE inline double multiplied(double value, float factor) { return value * factor; }
TORCHAMP_HOST_DEVICE inline Half multiplied(Half value, float factor) {
  return to_half(to_float(value) * factor);
}
TORCHAMP_HOST_DEVICE inline BFloat16 multiplied(BFloat16 value, float factor) {
  return to_bfloat16(to_float(value) * factor);
}

TORCHAMP_HOST_DEVICE inline bool is_nonfinite(float value) {
  return (bit_cast<uint32_t>(value) & 0x7f800000u) == 0x7f800000u;
}
TORCHAMP_HOST_DEVICE inline bool is_nonfinite(double value) {
  return (bit_cast<uint64_t>(value) & 0x7ff0000000000000u) == 0x7ff0000000000000u;
}
TORCHAMP_HOST_DEVICE inline bool is_nonfinite(Half value) {
  return (value.bits & 0x7c00u) == 0x7c00u;
}
TORCHAMP_HOST_DEVICE inline bool is_nonfinite(BFloat16 value) {
  return (value.bits & 0x7f80u) == 0x7f80u;
}

/// 1 / scale, one IEEE division. Equal to float(1 / double(scale)), which PyTorch computes, for
/// every positive finite scale.
TORCHAMP_HOST_DEVICE inline float inverse(float scale) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(scale);
#else
  return 1.0f / scale;
#endif
}

}  // namespace torchamp::common
