#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

// 16-bit floating point by the textbook, in double and without bit tricks: what the conversions of
// src/ops/common/element.h are compared with.

namespace reference {

struct Format {
  int exponent_bits;
  int mantissa_bits;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] int special_exponent() const { return (1 << exponent_bits) - 1; }
};

inline constexpr Format kHalf{5, 10};
inline constexpr Format kBFloat16{8, 7};

inline double decode(Format format, uint16_t bits) {
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> format.mantissa_bits) & format.special_exponent();
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  if (exponent == format.special_exponent()) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  }
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           exponent - format.bias() - format.mantissa_bits);
}

/// The nearest number of the format, ties to even; any NaN becomes the quiet one.
inline uint16_t encode(Format format, double value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int special = format.special_exponent() << format.mantissa_bits;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | special | (1 << (format.mantissa_bits - 1)));
  }
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0 || std::isinf(magnitude)) {
    return static_cast<uint16_t>(sign | (magnitude == 0.0 ? 0 : special));
  }
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
  // In units of the last place; nearbyint rounds ties to even. A carry runs into the exponent
  // field, which is what should happen, up to infinity.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double field = units + std::ldexp(exponent + format.bias() - 1, format.mantissa_bits);
  return static_cast<uint16_t>(sign | static_cast<int>(std::min<double>(field, special)));
}

}  // namespace reference
