#include <cmath>
#include <limits>

#include "catch.h"
#include "ops/common/element.h"
#include "small_float.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

// Conversions and the element rule of src/ops/common, against reference::encode and decode. Checks
// are counted by hand: a CHECK for each of some hundred thousand values takes minutes.

namespace {

using reference::Format;
using reference::kBFloat16;
using reference::kHalf;
using torchamp::common::BFloat16;
using torchamp::common::bit_cast;
using torchamp::common::Half;

constexpr uint32_t kAllBits = 0x10000;

template <typename T>
constexpr Format kFormat = kHalf;
template <>
constexpr Format kFormat<BFloat16> = kBFloat16;

Half converted(float value, Half) { return torchamp::common::to_half(value); }
BFloat16 converted(float value, BFloat16) { return torchamp::common::to_bfloat16(value); }

bool is_nan(Format format, uint16_t bits) { return std::isnan(reference::decode(format, bits)); }

template <typename T>
bool rounds_right(float value) {
  const uint16_t got = converted(value, T{}).bits;
  if (std::isnan(value)) {
    return is_nan(kFormat<T>, got) && (got >> 15) == std::signbit(value);
  }
  return got == reference::encode(kFormat<T>, value);
}

}  // namespace

TEMPLATE_TEST_CASE("every 16-bit number widens to its value and comes back", "[element]", Half,
                   BFloat16) {
  int wrong = 0;
  for (uint32_t bits = 0; bits < kAllBits; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float wide = to_float(TestType{narrow});
    const double expected = reference::decode(kFormat<TestType>, narrow);
    if (std::isnan(expected)) {
      wrong += !(std::isnan(wide) && std::signbit(wide) == (narrow >> 15));
      wrong += !rounds_right<TestType>(wide);
      continue;
    }
    wrong += !(wide == expected && std::signbit(wide) == std::signbit(expected));
    wrong += converted(wide, TestType{}).bits != narrow;
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("floats round right on both sides of every rounding boundary", "[element]", Half,
                   BFloat16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int wrong = 0;
  for (uint32_t bits = 0; bits + 1 < kAllBits; ++bits) {
    const double low = reference::decode(kFormat<TestType>, static_cast<uint16_t>(bits));
    double high = reference::decode(kFormat<TestType>, static_cast<uint16_t>(bits + 1));
    if (std::isnan(low) || std::isnan(high) || std::isinf(low)) {
      continue;
    }
    if (std::isinf(high)) {  // the boundary to infinity: where the next number would be
      high = low + (low - reference::decode(kFormat<TestType>, static_cast<uint16_t>(bits - 1)));
    }
    const auto boundary = static_cast<float>((low + high) / 2);
    for (const float value : {static_cast<float>(low), boundary}) {
      wrong += !rounds_right<TestType>(value);
      wrong += !rounds_right<TestType>(std::nextafter(value, kInfinity));
      wrong += !rounds_right<TestType>(std::nextafter(value, -kInfinity));
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("special floats narrow right", "[element]", Half, BFloat16) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {0.0f, 65519.996f, 65520.0f, Limits::max(), Limits::min(), 0x1p-25f,
                            0x1.000002p-25f, Limits::denorm_min(), Limits::infinity(),
                            Limits::quiet_NaN(), bit_cast<float>(0x7f800001u)}) {
    CHECK(rounds_right<TestType>(value));
    CHECK(rounds_right<TestType>(-value));
  }
}

TEST_CASE("a sweep over the floats narrows right", "[element]") {
  int wrong = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 9973) {  // a prime: all low bits come up
    const auto value = bit_cast<float>(static_cast<uint32_t>(bits));
    wrong += !rounds_right<Half>(value);
    wrong += !rounds_right<BFloat16>(value);
  }
  CHECK(wrong == 0);
}

#if defined(__F16C__)
TEST_CASE("halves convert as the processor does it", "[element]") {
  if (!__builtin_cpu_supports("f16c")) {
    return;
  }
  int wrong = 0;
  for (uint32_t bits = 0; bits < kAllBits; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    const float theirs = _cvtsh_ss(narrow);
    const float ours = torchamp::common::to_float(Half{narrow});
    wrong += !(theirs == ours || (std::isnan(theirs) && std::isnan(ours)));
  }
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 509) {
    const auto value = bit_cast<float>(static_cast<uint32_t>(bits));
    wrong += _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT) != torchamp::common::to_half(value).bits;
  }
  CHECK(wrong == 0);
}
#endif

TEST_CASE("is_nonfinite is what it says", "[element]") {
  using torchamp::common::is_nonfinite;
  int wrong = 0;
  for (uint32_t bits = 0; bits < kAllBits; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    wrong += is_nonfinite(Half{narrow}) == std::isfinite(reference::decode(kHalf, narrow));
    wrong += is_nonfinite(BFloat16{narrow}) == std::isfinite(reference::decode(kBFloat16, narrow));
    const auto value = bit_cast<float>((bits << 16) | (bits & 1u));
    wrong += is_nonfinite(value) == std::isfinite(value);
    const auto wide = bit_cast<double>((uint64_t{bits} << 48) | (bits & 1u));
    wrong += is_nonfinite(wide) == std::isfinite(wide);
  }
  CHECK(wrong == 0);
}

TEST_CASE("the inverse is the float nearest to the true reciprocal", "[element]") {
  int wrong = 0;
  for (uint64_t bits = 1; bits < 0x7f800000u; bits += 4099) {
    const auto scale = bit_cast<float>(static_cast<uint32_t>(bits));
    wrong += torchamp::common::inverse(scale) != static_cast<float>(1.0 / double{scale});
  }
  CHECK(wrong == 0);
}
