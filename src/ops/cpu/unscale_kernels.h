#pragma once

#include <torchamp/export.h>

#include <cstdint>

#include "ops/common/dtype.h"

// The loops over the memory of one tensor. There is a table of them for each instruction set;
// results have the same bits whichever is used.

namespace torchamp::cpu {

/// Multiplies `numel` elements by `factor` (as a float; doubles by all of it) and rounds once.
/// Returns whether any result is infinite or NaN. A factor of exactly 1 only reads.
using MultiplySpan = bool (*)(void* data, int64_t numel, double factor);

/// What one read of a span finds out.
struct SpanSummary {
  double squares;  // sum of squares of the elements
  bool nonfinite;  // whether any element times the inverse scale would be infinite or NaN
  bool in_range;   // false: the two above are void, squares of some doubles leave double's range
};

/// Reads `numel` elements. Additions are made in a fixed order.
using SummarizeSpan = SpanSummary (*)(const void* data, int64_t numel, float inverse);

template <typename Function>
struct PerDType {
  Function float32;
  Function float64;
  Function float16;
  Function bfloat16;

  [[nodiscard]] Function operator[](common::DType dtype) const {
    switch (dtype) {
      case common::DType::kFloat64:
        return float64;
      case common::DType::kFloat16:
        return float16;
      case common::DType::kBFloat16:
        return bfloat16;
      default:
        return float32;
    }
  }
};

struct UnscaleKernels {
  const char* instruction_set;
  PerDType<MultiplySpan> multiply;
  PerDType<SummarizeSpan> summarize;
};

extern const UnscaleKernels kUnscaleBaseline;
extern const UnscaleKernels kUnscaleAvx2;    // x86-64 with AVX2 and F16C
extern const UnscaleKernels kUnscaleAvx512;  // x86-64 with AVX-512 F, BW, VL, DQ

/// The best table for this processor.
TORCHAMP_API const UnscaleKernels& unscale_kernels();

}  // namespace torchamp::cpu
