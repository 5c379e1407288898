#pragma once

#include <cstdint>

// `pass`, the limit that the operators are measured against: the plainest loop over one flat
// buffer, compiled for the machine that it runs on, one equal share for each thread.

namespace torchamp::bench {

/// Multiplies a buffer of float32 in place: reads and writes it once.
void pass_scale(float* data, int64_t numel, float factor, int threads);

/// Sum of squares of a buffer of float32: reads it once.
double pass_sum_squares(const float* data, int64_t numel, int threads);

}  // namespace torchamp::bench
