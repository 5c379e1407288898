#pragma once

#include <cmath>

#include "ops/common/host_device.h"

namespace torchamp::common {

/// A sum of squares that neither overflows nor vanishes for any list of finite numbers.
///
/// The square of a float always fits into a double, that of a double does not: large and small
/// doubles are scaled by a power of two before they are squared, and summed apart (J. L. Blue, "A
/// portable Fortran program to find the Euclidean norm of a vector", 1978). Adding two sums is then
/// plain addition of the three parts.
struct SquareSum {
  double middle;  // sum of x^2
  double large;   // sum of (x * 2^-kLargeShift)^2, also of infinity and NaN
  double small;   // sum of (x * 2^kSmallShift)^2

  // Squares of middle numbers are normal, and there is room for 2^45 elements in each part:
  // 2^45 * (2^486)^2 and 2^45 * (2^1024 * 2^-538)^2 are below 2^1024.
  static constexpr int kLargeShift = 538;
  static constexpr int kSmallShift = 537;
  static constexpr double kLargest = 0x1p486;
  static constexpr double kSmallest = 0x1p-511;

  TORCHAMP_HOST_DEVICE void add(double x) {
    const double magnitude = std::fabs(x);
    if (!(magnitude <= kLargest)) {
      large += (x * 0x1p-538) * (x * 0x1p-538);
    } else if (magnitude < kSmallest) {
      small += (x * 0x1p537) * (x * 0x1p537);
    } else {
      middle += x * x;
    }
  }

  TORCHAMP_HOST_DEVICE void add(const SquareSum& other) {
    middle += other.middle;
    large += other.large;
    small += other.small;
  }
};

/// root * 2^exponent, which may lie outside the range of double.
struct ScaledRoot {
  double root;
  int exponent;
};

/// The square root of the whole sum.
TORCHAMP_HOST_DEVICE inline ScaledRoot square_root(const SquareSum& sum) {
  // The largest part that is there, with the next smaller one; beside `large`, `small` is below any
  // rounding. The comparisons are written so that a NaN does not get lost.
  if (!(sum.large == 0.0)) {
    return {std::sqrt(sum.large + sum.middle * 0x1p-538 * 0x1p-538), SquareSum::kLargeShift};
  }
  if (!(sum.middle == 0.0)) {
    return {std::sqrt(sum.middle + sum.small * 0x1p-537 * 0x1p-537), 0};
  }
  return {std::sqrt(sum.small), -SquareSum::kSmallShift};
}

}  // namespace torchamp::common
