#include "ops/cpu/clip_norm.h"

#include <algorithm>

#include "ops/common/element.h"
#include "ops/cpu/unscale.h"
#include "ops/cpu/unscale_kernels.h"

namespace torchamp::cpu {

namespace {

/// Doubles whose squares leave the range of double, one by one.
bool sum_wide_squares(const double* data, int64_t numel, float inverse, SquareSum& sum) {
  bool nonfinite = false;
  for (int64_t i = 0; i < numel; ++i) {
    nonfinite |= common::is_nonfinite(common::multiplied(data[i], inverse));
    sum.add(data[i]);
  }
  return nonfinite;
}

template <typename T>
void multiply_each(const Span& span, common::FloatFactor factor) {
  T* elements = static_cast<T*>(span.data);
  for (int64_t i = 0; i < span.numel; ++i) {
    elements[i] = common::multiplied(elements[i], factor);
  }
}

/// The case of a factor that takes two floats, which a huge norm leads to.
void multiply_twice(const Span& span, double factor, common::FloatFactor in_float) {
  switch (span.dtype) {
    case common::DType::kFloat64:
      unscale_kernels().multiply.float64(span.data, span.numel, factor);
      return;
    case common::DType::kFloat16:
      return multiply_each<common::Half>(span, in_float);
    case common::DType::kBFloat16:
      return multiply_each<common::BFloat16>(span, in_float);
    default:
      return multiply_each<float>(span, in_float);
  }
}

}  // namespace

bool sum_squares(const common::ChunkTable& table, uint32_t first, uint32_t last, float inverse,
                 SquareSum* sums) {
  const UnscaleKernels& kernels = unscale_kernels();
  bool nonfinite = false;
  for_each_span(table, first, last, [&](const Span& span) {
    const SummarizeSpan summarize = kernels.summarize[span.dtype];
    const char* data = static_cast<const char*>(span.data);
    SquareSum* sum = sums + span.first_chunk;
    for (int64_t begin = 0; begin < span.numel; begin += common::kChunkSize, ++sum) {
      const int64_t numel = std::min(common::kChunkSize, span.numel - begin);
      const SpanSummary summary = summarize(data, numel, inverse);
      *sum = {summary.squares, 0, 0};
      if (summary.in_range) {
        nonfinite |= summary.nonfinite;
      } else {
        *sum = {};
        nonfinite |= sum_wide_squares(reinterpret_cast<const double*>(data), numel, inverse, *sum);
      }
      data += numel * static_cast<int64_t>(size_of(span.dtype));
    }
  });
  return nonfinite;
}

ClipFactor clip_factor(const SquareSum* sums, std::size_t count, float inverse, double max_norm) {
  SquareSum total{};
  for (std::size_t i = 0; i < count; ++i) {
    total.add(sums[i]);
  }
  return common::clip_factor(total, inverse, max_norm);
}

void apply_factor(const common::ChunkTable& table, uint32_t first, uint32_t last, double factor) {
  constexpr uint32_t kChunksAtOnce = 64;  // four megabytes of floats
  const common::FloatFactor in_float = common::float_factor(factor);
  for (uint32_t end = last; end > first;) {
    const uint32_t begin = end - std::min(kChunksAtOnce, end - first);
    if (in_float.coarse == 1.0f) {
      unscale_chunks(table, begin, end, factor);
    } else {
      for_each_span(table, begin, end,
                    [&](const Span& span) { multiply_twice(span, factor, in_float); });
    }
    end = begin;
  }
}

}  // namespace torchamp::cpu
