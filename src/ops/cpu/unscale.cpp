#include "ops/cpu/unscale.h"

#include <algorithm>

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

UnscaleSpan kernel_for(const UnscaleKernels& kernels, common::DType dtype) {
  switch (dtype) {
    case common::DType::kFloat64:
      return kernels.float64;
    case common::DType::kFloat16:
      return kernels.float16;
    case common::DType::kBFloat16:
      return kernels.bfloat16;
    default:
      return kernels.float32;
  }
}

}  // namespace

bool unscale_chunks(const common::ChunkTable& table, uint32_t first, uint32_t last, float factor) {
  static const UnscaleKernels& kernels = best_kernels();
  const auto& entries = table.entries();
  bool nonfinite = false;
  if (first >= last) {
    return nonfinite;
  }
  auto index = static_cast<std::size_t>(
      common::find_entry(entries.data(), static_cast<int>(entries.size()), first));
  // A run of chunks is one stretch of memory in each tensor: no need to go chunk by chunk.
  for (; index < entries.size() && entries[index].first_chunk < last; ++index) {
    const common::ChunkEntry& entry = entries[index];
    const int64_t skipped = first > entry.first_chunk ? first - entry.first_chunk : 0;
    const int64_t begin = skipped * common::kChunkSize;
    const int64_t end = std::min(
        entry.numel, (static_cast<int64_t>(last) - entry.first_chunk) * common::kChunkSize);
    auto* data =
        static_cast<char*>(entry.data) + begin * static_cast<int64_t>(size_of(entry.dtype));
    nonfinite |= kernel_for(kernels, entry.dtype)(data, end - begin, factor);
  }
  return nonfinite;
}

}  // namespace torchamp::cpu
