#pragma once

#include <cmath>

#include "ops/common/element.h"
#include "ops/cuda/square_sum.h"

// The arithmetic of clipping: from the sum of squares of the scaled gradients to the one factor
// that unscales and clips them, and that factor times one element.

namespace torchamp::cuda {

/// The 2-norm of the list times `inverse`; infinite only where that lies above the range of double.
TORCHAMP_HOST_DEVICE inline double scaled_norm(ScaledRoot root, float inverse) {
  return std::scalbn(root.root * inverse, root.exponent);
}

/// inverse * min(1, max_norm / (norm + 1e-6)) for norm = scaled_norm(root, inverse).
TORCHAMP_HOST_DEVICE inline double clip_factor(ScaledRoot root, float inverse, double norm,
                                               double max_norm) {
  // Finite elements whose norm is beyond double: the inverse cancels, and 1e-6 cannot matter.
  const bool beyond = std::isinf(norm) && !std::isinf(root.root);
  const double clipped = beyond ? std::scalbn(max_norm / root.root, -root.exponent)
                                : inverse * (max_norm / (norm + 1e-6));
  return clipped >= inverse ? inverse : clipped;  // a NaN stays one
}

/// Whether `factor` keeps its precision as a float, so that all but doubles may be multiplied in
/// float. A factor below that range comes from a norm that is near or above float's largest number.
TORCHAMP_HOST_DEVICE inline bool fits_float(double factor) {
  return !(std::fabs(factor) < 0x1p-126);
}

/// One element times a factor that does not fit a float.
TORCHAMP_HOST_DEVICE inline float multiplied_wide(float value, double factor) {
  return static_cast<float>(value * factor);
}
TORCHAMP_HOST_DEVICE inline double multiplied_wide(double value, double factor) {
  return value * factor;
}
TORCHAMP_HOST_DEVICE inline common::Half multiplied_wide(common::Half value, double factor) {
  return common::to_half(multiplied_wide(common::to_float(value), factor));
}
TORCHAMP_HOST_DEVICE inline common::BFloat16 multiplied_wide(common::BFloat16 value,
                                                             double factor) {
  return common::to_bfloat16(multiplied_wide(common::to_float(value), factor));
}

}  // namespace torchamp::cuda
