#pragma once

#include <cstdint>

#include "ops/common/dtype.h"

namespace torchamp::cpu {

/// Multiplies `numel` elements by `factor`; returns whether any result is infinite or NaN.
using UnscaleSpan = bool (*)(void* data, int64_t numel, float factor);

/// One function for each element type, all for one instruction set.
struct UnscaleKernels {
  UnscaleSpan float32;
  UnscaleSpan float64;
  UnscaleSpan float16;
  UnscaleSpan bfloat16;
};

extern const UnscaleKernels kUnscaleBaseline;
extern const UnscaleKernels kUnscaleAvx2;    // x86-64 with AVX2 and F16C
extern const UnscaleKernels kUnscaleAvx512;  // x86-64 with AVX-512 F, BW, VL, DQ

}  // namespace torchamp::cpu
