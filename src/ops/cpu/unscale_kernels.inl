// The CPU kernels, included by one source file for each instruction set. Everything is in an
// unnamed namespace and nothing of the shared headers is called but types: a function with external
// linkage, compiled here for a new processor, could be the one that the linker keeps for all.
//
// The loops have no branch, so that the compiler turns them into vector code of any width. The
// element rule is that of common/element.h; the tests compare the two for every 16-bit number.

#include <cstdint>
#include <cstring>
#include <limits>
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

// --- overflow ---

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

// --- conversions of 16-bit types, on the low half of a word ---

float widened(BFloat16, uint32_t low) { return bits_as<float>(low << 16); }

/// To nearest, ties to even. The low 16 bits of a NaN must be 0, or rounding could carry into the
/// sign. They are: both operands of a product come from 16 bits or are canonical.
uint32_t narrowed(BFloat16, float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

/// A choice that stays a choice: compilers make branches of a chain of conditional operators.
uint32_t select(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

float widened(Half, uint32_t low) {
  const uint32_t sign = (low & 0x8000u) << 16;
  const uint32_t magnitude = low & 0x7fffu;
  const uint32_t rebias = select(magnitude < 0x7c00u, 0x38000000u, 0x70000000u);
  const auto subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  return bits_as<float>(
      sign | select(magnitude < 0x0400u, bits_as<uint32_t>(subnormal), (magnitude << 13) + rebias));
}

uint32_t narrowed(Half, float value) {
  const uint32_t bits = bits_as<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 a half is a multiple of 2^-24, which is what adding 0.5 rounds to.
  const uint32_t subnormal = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // 65520 and more round to infinity.
  const uint32_t special = select(magnitude > 0x7f800000u, 0x7e00u, 0x7c00u);
  const uint32_t finite = select(magnitude < 0x38800000u, subnormal, normal);
  return ((bits >> 16) & 0x8000u) | select(magnitude >= 0x477ff000u, special, finite);
}

// --- multiplication ---

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

/// 16-bit elements, in words of two: the word is shifted to get at either, and no vector needs to
/// be taken apart and put together. Which of the two comes first does not matter.
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

/// Any NaN as the one that `narrowed` can take.
template <typename T>
T canonical(T factor) {
  return factor == factor ? factor : std::numeric_limits<T>::quiet_NaN();
}

template <typename T>
bool multiply_span(void* data, int64_t numel, double factor) {
  using Factor = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto narrow = canonical(static_cast<Factor>(factor));
  T* elements = static_cast<T*>(data);
  const auto seen = narrow == 1 ? check(elements, numel) : multiply(elements, numel, narrow);
  return (seen & Exponent<T>::kCarry) != 0;
}

// --- sum of squares ---

// Squares of float, and of what is narrower, are exact in double and always in its range.

/// Elements that are looked at twice: few enough for the second read to come from the first cache.
constexpr int64_t kBlock = 1024;

/// Element i is added to lane i % kLanes, on every processor: enough lanes that an addition need
/// not wait for the one before.
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

/// Every number times itself, in double.
template <typename T>
void add_squares(const T* data, int64_t numel, double* lanes) {
  int64_t begin = 0;
  for (; begin + kLanes <= numel; begin += kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      const double wide = data[begin + i];
      lanes[i] += wide * wide;
    }
  }
  for (int64_t i = begin; i < numel; ++i) {
    const double wide = data[i];
    lanes[i - begin] += wide * wide;
  }
}

/// Four squares are added in float before they are in double, which costs more: the error of the
/// norm stays below 2^-22. Returns how many numbers that was done for.
int64_t add_squares_by_four(const float* data, int64_t numel, double* lanes) {
  int64_t begin = 0;
  for (; begin + 4 * kLanes <= numel; begin += 4 * kLanes) {
    const float* row = data + begin;
    for (int i = 0; i < kLanes; ++i) {
      const float first = row[i] * row[i] + row[i + kLanes] * row[i + kLanes];
      const float second =
          row[i + 2 * kLanes] * row[i + 2 * kLanes] + row[i + 3 * kLanes] * row[i + 3 * kLanes];
      lanes[i] += static_cast<double>(first + second);
    }
  }
  return begin;
}

double sum_of_squares(const double* data, int64_t numel) {
  double lanes[kLanes] = {};
  add_squares(data, numel, lanes);
  return sum_of<kLanes>(lanes);
}

double sum_of_squares(const float* data, int64_t numel, float largest) {
  double lanes[kLanes] = {};
  // In this range no square overflows, and what underflows is nothing beside the largest.
  const bool in_float = largest >= 0x1p-40f && largest <= 0x1p60f;
  const int64_t done = in_float ? add_squares_by_four(data, numel, lanes) : 0;
  add_squares(data + done, numel - done, lanes);
  return sum_of<kLanes>(lanes);
}

/// The elements as floats: themselves, or in the buffer.
const float* widen(const float* data, int64_t /*numel*/, float* /*buffer*/) { return data; }

template <typename T>
const float* widen(const T* data, int64_t numel, float* buffer) {
  int64_t i = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Half>) {
    for (; i + 8 <= numel; i += 8) {
      const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + i));
      _mm256_storeu_ps(buffer + i, _mm256_cvtph_ps(eight));
    }
  }
#endif
  for (; i < numel; ++i) {
    buffer[i] = widened(T{}, data[i].bits);
  }
  return buffer;
}

/// As integers, magnitudes are in the same order as numbers, and NaN is above all.
template <typename T>
Bits<T> largest_magnitude(const T* data, int64_t numel) {
  constexpr auto kMask = static_cast<Bits<T>>(static_cast<Bits<T>>(-1) >> 1);
  Bits<T> largest = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const auto magnitude = static_cast<Bits<T>>(bits_as<Bits<T>>(data[i]) & kMask);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

float widened_magnitude(float, uint32_t magnitude) { return bits_as<float>(magnitude); }
template <typename T>
float widened_magnitude(T, uint16_t magnitude) {
  return widened(T{}, magnitude);
}

/// The largest number tells whether any product overflows: products grow with it.
bool overflows(float, float magnitude, float factor) {
  return (carries<float>(bits_as<uint32_t>(magnitude * factor)) & Exponent<float>::kCarry) != 0;
}
template <typename T>
bool overflows(T, float magnitude, float factor) {
  const uint32_t product = narrowed(T{}, magnitude * canonical(factor));
  return (carries<T>(product) & Exponent<T>::kCarry & 0xffffu) != 0;
}

template <typename T>
SpanSummary summarize_span(const void* data, int64_t numel, float inverse) {
  float buffer[kBlock];
  const T* elements = static_cast<const T*>(data);
  Bits<T> largest = 0;
  double squares = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = numel - begin < kBlock ? numel - begin : kBlock;
    const Bits<T> in_block = largest_magnitude(elements + begin, size);
    largest = in_block > largest ? in_block : largest;
    squares += sum_of_squares(widen(elements + begin, size, buffer), size,
                              widened_magnitude(T{}, in_block));
  }
  return {squares, overflows(T{}, widened_magnitude(T{}, largest), inverse), true};
}

/// Whether the square of any element leaves the range of double, or comes near it: the highest bit.
uint64_t squares_out_of_range(const double* data, int64_t numel) {
  constexpr auto kSmallest = 0x2000000000000000u;  // 2^-511
  constexpr auto kTooLarge = 0x5e50000000000000u;  // 2^486
  uint64_t seen = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const uint64_t magnitude = bits_as<uint64_t>(data[i]) & 0x7fffffffffffffffu;
    const uint64_t small = (magnitude - kSmallest) & ~(magnitude - 1);  // 0 is not small
    const uint64_t large = magnitude + (0x8000000000000000u - kTooLarge);
    seen |= small | large;
  }
  return seen;
}

template <>
SpanSummary summarize_span<double>(const void* data, int64_t numel, float inverse) {
  const double* elements = static_cast<const double*>(data);
  uint64_t out_of_range = 0;
  double squares = 0;
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t size = numel - begin < kBlock ? numel - begin : kBlock;
    out_of_range |= squares_out_of_range(elements + begin, size);
    squares += sum_of_squares(elements + begin, size);
  }
  const double bound = 0x1p486 * static_cast<double>(inverse);
  return {squares, (carries<double>(bits_as<uint64_t>(bound)) & Exponent<double>::kCarry) != 0,
          (out_of_range & 0x8000000000000000u) == 0};
}

constexpr UnscaleKernels kernels_for(const char* instruction_set) noexcept {
  return {instruction_set,
          {&multiply_span<float>, &multiply_span<double>, &multiply_span<Half>,
           &multiply_span<BFloat16>},
          {&summarize_span<float>, &summarize_span<double>, &summarize_span<Half>,
           &summarize_span<BFloat16>}};
}

}  // namespace

}  // namespace torchamp::cpu
