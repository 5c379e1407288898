// The CPU kernels, included by one source file for each instruction set. Everything is in an unnamed
// namespace and nothing of the shared headers is called but types: a function with external linkage,
// compiled here for a new processor, could be the one that the linker keeps for all.
//
// The loops have no branch, so that the compiler turns them into vector code of any width. The
// element rule is that of common/element.h; the tests compare the two for every 16-bit number.

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "ops/common/dtype.h"
#include "ops/cpu/unscale_kernels.h"

namespace torchamp::cpu {

namespace {

using common::BFloat16;
using common::Half;

template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// --- overflow ----------------------------------------------------------------------------------------
// Infinity and NaN have all bits of the exponent set: then adding its lowest bit, and only then,
// carries into the bit above, the sign's, which the mask has cleared. Carries are collected by OR.

template <typename T>
struct Exponent;
template <>
struct Exponent<float> {
  using Word = uint32_t;
  static constexpr Word kMask = 0x7f800000;
  static constexpr Word kLowest = 0x00800000;
  static constexpr Word kCarry = 0x80000000;
};
template <>
struct Exponent<double> {
  using Word = uint64_t;
  static constexpr Word kMask = 0x7ff0000000000000;
  static constexpr Word kLowest = 0x0010000000000000;
  static constexpr Word kCarry = 0x8000000000000000;
};
template <>
struct Exponent<BFloat16> {  // of two elements in one word, as all that follows for 16-bit types
  using Word = uint32_t;
  static constexpr Word kMask = 0x7f807f80;
  static constexpr Word kLowest = 0x00800080;
  static constexpr Word kCarry = 0x80008000;
};
template <>
struct Exponent<Half> {
  using Word = uint32_t;
  static constexpr Word kMask = 0x7c007c00;
  static constexpr Word kLowest = 0x04000400;
  static constexpr Word kCarry = 0x80008000;
};

template <typename T>
typename Exponent<T>::Word carries(typename Exponent<T>::Word word) {
  return (word & Exponent<T>::kMask) + Exponent<T>::kLowest;
}

// --- conversions of 16-bit types, on the low half of a word --------------------------------------------

float widened(BFloat16, uint32_t low) { return bits_as<float>(low << 16); }

uint32_t narrowed(BFloat16, float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  // To nearest, ties to even. A product that is NaN has its highest mantissa bit set: cutting it off
  // leaves a NaN, rounding it could carry into the sign.
  const uint32_t half = 0x7fffu + ((bits >> 16) & 1u);
  return (bits + (value == value ? half : 0u)) >> 16;
}

float widened(Half, uint32_t low) {
  const uint32_t sign = (low & 0x8000u) << 16;
  const uint32_t magnitude = low & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u);
  const auto subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bits_as<float>(sign | (magnitude < 0x0400u ? bits_as<uint32_t>(subnormal) : normal));
}

uint32_t narrowed(Half, float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 a half is a multiple of 2^-24, which is what adding 0.5 rounds to.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and more round to infinity
  half = magnitude > 0x7f800000u ? 0x7e00u : half;   // NaN
  return ((bits >> 16) & 0x8000u) | half;
}

// --- multiplication ------------------------------------------------------------------------------------

/// Multiplies and collects the carries of the results; so do the two functions below.
template <typename T>
typename Exponent<T>::Word multiply(T* __restrict data, int64_t numel, T factor) {
  typename Exponent<T>::Word seen = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const T product = data[i] * factor;
    data[i] = product;
    seen |= carries<T>(bits_as<typename Exponent<T>::Word>(product));
  }
  return seen;
}

/// 16-bit elements, in words of two: the word is shifted to get at either, and no vector needs to be
/// taken apart and put together. Which of the two comes first does not matter.
template <typename T>
uint32_t multiply_pairs(T* __restrict data, int64_t numel, float factor) {
  const auto multiplied = [factor](uint32_t word) {
    const uint32_t low = narrowed(T{}, widened(T{}, word & 0xffffu) * factor);
    const uint32_t high = narrowed(T{}, widened(T{}, word >> 16) * factor);
    return high << 16 | low;
  };
  auto* bytes = reinterpret_cast<char*>(data);
  uint32_t seen = 0;
  for (int64_t i = 0; i < numel / 2; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes + 4 * i, 4);
    word = multiplied(word);
    std::memcpy(bytes + 4 * i, &word, 4);
    seen |= carries<T>(word);
  }
  if (numel % 2 != 0) {
    T& last = data[numel - 1];
    const uint32_t word = multiplied(last.bits) & 0xffffu;
    last.bits = static_cast<uint16_t>(word);
    seen |= carries<T>(word);
  }
  return seen;
}

uint32_t multiply(BFloat16* data, int64_t numel, float factor) {
  return multiply_pairs(data, numel, factor);
}

#if defined(__F16C__)
// The processor's own conversions, which compilers do not use by themselves. Eight at a time; the
// rest goes through a buffer, so that every element takes the same instructions.
uint32_t multiply(Half* __restrict data, int64_t numel, float factor) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m128i mask = _mm_set1_epi32(Exponent<Half>::kMask);
  const __m128i lowest = _mm_set1_epi32(Exponent<Half>::kLowest);
  __m128i seen = _mm_setzero_si128();
  const auto eight = [&](Half* at) {
    const __m128i in = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m256 product = _mm256_mul_ps(_mm256_cvtph_ps(in), factors);
    const __m128i out = _mm256_cvtps_ph(product, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), out);
    seen = _mm_or_si128(seen, _mm_add_epi16(_mm_and_si128(out, mask), lowest));
  };
  int64_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    eight(data + i);
  }
  if (i < numel) {
    Half rest[8] = {};
    const auto bytes = static_cast<std::size_t>(numel - i) * sizeof(Half);
    std::memcpy(rest, data + i, bytes);
    eight(rest);
    std::memcpy(data + i, rest, bytes);
  }
  const bool carried = (_mm_movemask_epi8(seen) & 0xaaaa) != 0;  // the signs of 16-bit numbers
  return carried ? Exponent<Half>::kCarry : 0;
}
#else
uint32_t multiply(Half* data, int64_t numel, float factor) {
  return multiply_pairs(data, numel, factor);
}
#endif

template <typename T>
using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, typename Exponent<T>::Word>;

template <typename T>
typename Exponent<T>::Word check(const T* data, int64_t numel) {
  Bits<T> seen = 0;
  for (int64_t i = 0; i < numel; ++i) {
    seen = static_cast<Bits<T>>(seen | carries<T>(bits_as<Bits<T>>(data[i])));
  }
  return seen;
}

template <typename T>
bool multiply_span(void* data, int64_t numel, double factor) {
  using Factor = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto narrow = static_cast<Factor>(factor);
  T* elements = static_cast<T*>(data);
  const auto seen = narrow == 1 ? check(elements, numel) : multiply(elements, numel, narrow);
  return (seen & Exponent<T>::kCarry) != 0;
}

// --- sum of squares ------------------------------------------------------------------------------------
// Squares of float, and of what is narrower, are exact in double and always in its range.

/// Element i is added to lane i % kLanes, on every processor: enough lanes that an addition need not
/// wait for the one before.
constexpr int kLanes = 32;

template <int kCount>
double sum_of(double* lanes) {
  if constexpr (kCount == 1) {
    return lanes[0];
  } else {
    for (int i = 0; i < kCount / 2; ++i) {
      lanes[i] += lanes[i + kCount / 2];
    }
    return sum_of<kCount / 2>(lanes);
  }
}

/// Calls `row` with every kLanes elements, the last of them filled up with zeros.
template <typename T, typename Row>
void for_each_row(const void* data, int64_t numel, Row row) {
  const T* elements = static_cast<const T*>(data);
  int64_t i = 0;
  for (; i + kLanes <= numel; i += kLanes) {
    row(elements + i);
  }
  if (i < numel) {
    T rest[kLanes] = {};
    std::memcpy(rest, elements + i, static_cast<std::size_t>(numel - i) * sizeof(T));
    row(rest);
  }
}

void widen(const float* from, float* to) { std::memcpy(to, from, kLanes * sizeof(float)); }

void widen(const BFloat16* from, float* to) {
  for (int i = 0; i < kLanes; ++i) {
    to[i] = widened(BFloat16{}, from[i].bits);
  }
}

void widen(const Half* from, float* to) {
#if defined(__F16C__)
  for (int i = 0; i < kLanes; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(eight));
  }
#else
  for (int i = 0; i < kLanes; ++i) {
    to[i] = widened(Half{}, from[i].bits);
  }
#endif
}

/// The largest number tells whether any product overflows: products grow with it.
bool overflows(float, uint32_t magnitude, float factor) {
  const float product = bits_as<float>(magnitude) * factor;
  return (carries<float>(bits_as<uint32_t>(product)) & Exponent<float>::kCarry) != 0;
}
template <typename T>
bool overflows(T, uint16_t magnitude, float factor) {
  const uint32_t product = narrowed(T{}, widened(T{}, magnitude) * factor);
  return (carries<T>(product) & Exponent<T>::kCarry & 0xffffu) != 0;
}

template <typename T>
SpanSummary summarize_span(const void* data, int64_t numel, float inverse) {
  constexpr auto kMagnitude = static_cast<Bits<T>>(static_cast<Bits<T>>(-1) >> 1);
  double squares[kLanes] = {};
  Bits<T> largest[kLanes] = {};  // as integers, magnitudes are in the same order; NaN is above all
  for_each_row<T>(data, numel, [&](const T* row) {
    float wide[kLanes];
    widen(row, wide);
    for (int i = 0; i < kLanes; ++i) {
      const auto magnitude = static_cast<Bits<T>>(bits_as<Bits<T>>(row[i]) & kMagnitude);
      largest[i] = magnitude > largest[i] ? magnitude : largest[i];
    }
    for (int i = 0; i < kLanes; ++i) {
      squares[i] += static_cast<double>(wide[i]) * static_cast<double>(wide[i]);
    }
  });
  Bits<T> over_all = 0;
  for (const Bits<T> magnitude : largest) {
    over_all = magnitude > over_all ? magnitude : over_all;
  }
  return {sum_of<kLanes>(squares), overflows(T{}, over_all, inverse), true};
}

/// The squares of doubles may leave the range: looks whether that is possible at all.
template <>
SpanSummary summarize_span<double>(const void* data, int64_t numel, float inverse) {
  constexpr auto kSmallest = 0x2000000000000000u;  // 2^-511
  constexpr auto kTooLarge = 0x5e50000000000000u;  // 2^486
  double squares[kLanes] = {};
  uint64_t outside[kLanes] = {};  // the highest bits count
  for_each_row<double>(data, numel, [&](const double* row) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t magnitude = bits_as<uint64_t>(row[i]) & 0x7fffffffffffffffu;
      const uint64_t small = (magnitude - kSmallest) & ~(magnitude - 1);
      const uint64_t large = magnitude + (0x8000000000000000u - kTooLarge);
      outside[i] |= small | large;
      squares[i] += row[i] * row[i];
    }
  });
  uint64_t any = 0;
  for (const uint64_t bits : outside) {
    any |= bits;
  }
  const double bound = 0x1p486 * static_cast<double>(inverse);
  return {sum_of<kLanes>(squares),
          (carries<double>(bits_as<uint64_t>(bound)) & Exponent<double>::kCarry) != 0,
          (any & 0x8000000000000000u) == 0};
}

constexpr UnscaleKernels kKernels{
    {&multiply_span<float>, &multiply_span<double>, &multiply_span<Half>, &multiply_span<BFloat16>},
    {&summarize_span<float>, &summarize_span<double>, &summarize_span<Half>,
     &summarize_span<BFloat16>}};

}  // namespace

}  // namespace torchamp::cpu
