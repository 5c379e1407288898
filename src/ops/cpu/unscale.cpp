#include "ops/cpu/unscale.h"

#include "ops/cpu/unscale_kernels.h"

namespace torchamp::cpu {

namespace {

const UnscaleKernels& best_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    return kUnscaleAvx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    return kUnscaleAvx2;
  }
#endif
  return kUnscaleBaseline;
}

}  // namespace

const UnscaleKernels& unscale_kernels() {
  static const UnscaleKernels& best = best_kernels();
  return best;
}

bool unscale_chunks(const common::ChunkTable& table, uint32_t first, uint32_t last, double factor) {
  const UnscaleKernels& kernels = unscale_kernels();
  bool nonfinite = false;
  for_each_span(table, first, last, [&](const Span& span) {
    nonfinite |= kernels.multiply[span.dtype](span.data, span.numel, factor);
  });
  return nonfinite;
}

}  // namespace torchamp::cpu
