#pragma once

#include <cmath>

#include "ops/common/element.h"
#include "ops/common/square_sum.h"

// The arithmetic of clipping: from the sum of squares of the scaled gradients to the one factor
// that unscales and clips them, and that factor times one element.

namespace torchamp::common {

/// The 2-norm of the list times |inverse|; infinite only where that lies above the range of double.
TORCHAMP_HOST_DEVICE inline double scaled_norm(ScaledRoot root, float inverse) {
  return std::scalbn(root.root * std::fabs(inverse), root.exponent);
}

/// What clipping multiplies by, and why.
struct ClipFactor {
  double norm;    // 2-norm of the true (unscaled) gradients
  double factor;  // inverse * min(1, max_norm / (norm + 1e-6))
};

/// For the sum of squares of the scaled gradients.
TORCHAMP_HOST_DEVICE inline ClipFactor clip_factor(const SquareSum& total, float inverse,
                                                   double max_norm) {
  const ScaledRoot root = square_root(total);
  const double norm = scaled_norm(root, inverse);
  const double magnitude = std::fabs(inverse);
  // Finite elements whose norm is beyond double: the inverse cancels, and 1e-6 cannot matter.
  const bool beyond = std::isinf(norm) && !std::isinf(root.root);
  const double clipped = beyond ? std::scalbn(max_norm / root.root, -root.exponent)
                                : magnitude * (max_norm / (norm + 1e-6));
  const double factor = clipped >= magnitude ? magnitude : clipped;  // a NaN stays one
  return {norm, inverse < 0 ? -factor : factor};
}

/// A double factor as two floats for the elements that are multiplied in float: one alone would
/// lose precision below 2^-126, which a norm above float's largest number leads to, and vanish soon
/// after.
struct FloatFactor {
  float coarse;  // a power of two
  float fine;
};

/// `value * coarse * fine` rounds once: the first product is exact, or so small that the second is
/// 0. Both are normal floats for a factor from 2^-252 up; below, `fine` loses precision.
TORCHAMP_HOST_DEVICE inline FloatFactor float_factor(double factor) {
  const double magnitude = std::fabs(factor);
  const float coarse = magnitude >= 0x1p-126 ? 1.0f : magnitude >= 0x1p-190 ? 0x1p-64f : 0x1p-126f;
  return {coarse, static_cast<float>(factor / static_cast<double>(coarse))};
}

TORCHAMP_HOST_DEVICE inline float multiplied(float value, FloatFactor factor) {
  return value * factor.coarse * factor.fine;
}
TORCHAMP_HOST_DEVICE inline Half multiplied(Half value, FloatFactor factor) {
  return to_half(multiplied(to_float(value), factor));
}
TORCHAMP_HOST_DEVICE inline BFloat16 multiplied(BFloat16 value, FloatFactor factor) {
  return to_bfloat16(multiplied(to_float(value), factor));
}

}  // namespace torchamp::common
