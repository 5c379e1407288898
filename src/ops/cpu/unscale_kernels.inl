// The CPU kernels, included by one source file for each instruction set. Everything is in an unnamed
// namespace and what is shared is always inlined: a function with external linkage, compiled here
// for a new processor, could be the one that the linker keeps for all.

#include <algorithm>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "ops/common/element.h"
#include "ops/cpu/unscale_kernels.h"

namespace torchamp::cpu {

namespace {

// Elements between two looks at the flag: the loop over them has no branch, so that it vectorises.
constexpr int64_t kBlock = 1024;

template <typename T>
bool multiply_block(T* __restrict data, int64_t numel, float factor) {
  uint32_t nonfinite = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const T result = common::multiplied(data[i], factor);
    nonfinite |= static_cast<uint32_t>(common::is_nonfinite(result));
    data[i] = result;
  }
  return nonfinite != 0;
}

#if defined(__F16C__)
// Compilers do not vectorise the half conversions by themselves. Eight at a time; the rest goes
// through a buffer of eight, so that every element takes the same instructions.
bool multiply_block(common::Half* __restrict data, int64_t numel, float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m128i exponent = _mm_set1_epi16(0x7c00);
  __m128i nonfinite = _mm_setzero_si128();
  const auto eight = [&](common::Half* at) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m256 product = _mm256_mul_ps(_mm256_cvtph_ps(in), factors);
    const __m128i out = _mm256_cvtps_ph(product, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), out);
    nonfinite =
        _mm_or_si128(nonfinite, _mm_cmpeq_epi16(_mm_and_si128(out, exponent), exponent));
  };
  int64_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    eight(data + i);
  }
  if (i < numel) {
    common::Half rest[8] = {};
    const auto bytes = static_cast<std::size_t>(numel - i) * sizeof(common::Half);
    std::memcpy(rest, data + i, bytes);
    eight(rest);
    std::memcpy(data + i, rest, bytes);
  }
  return _mm_movemask_epi8(nonfinite) != 0;
}
#endif

template <typename T>
bool check_block(const T* data, int64_t numel) {
  uint32_t nonfinite = 0;
  for (int64_t i = 0; i < numel; ++i) {
    nonfinite |= static_cast<uint32_t>(common::is_nonfinite(data[i]));
  }
  return nonfinite != 0;
}

template <typename T>
bool unscale_span(void* data, int64_t numel, float factor) {
  T* elements = static_cast<T*>(data);
  bool nonfinite = false;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = numel - begin < kBlock ? numel - begin : kBlock;
    nonfinite |= factor == 1.0f ? check_block(elements + begin, size)
                                : multiply_block(elements + begin, size, factor);
  }
  return nonfinite;
}

constexpr UnscaleKernels kKernels{&unscale_span<float>, &unscale_span<double>,
                                  &unscale_span<common::Half>, &unscale_span<common::BFloat16>};

}  // namespace

}  // namespace torchamp::cpu
