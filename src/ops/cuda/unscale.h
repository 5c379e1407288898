#pragma once

#include <cuda_runtime_api.h>

#include "ops/common/chunk_table.h"

namespace torchamp::cuda {

/// Where kernels on the device find the factor that undoes the scaling.
struct InverseSource {
  const float* value;  // device memory; null stands for 1: gradients that are unscaled already
  bool is_inverse;     // false: `*value` is the scale, kernels take 1 / *value

  static InverseSource from_scale(const float* scale) { return {scale, false}; }
  static InverseSource from_inverse(const float* inverse) { return {inverse, true}; }
  static InverseSource one() { return {nullptr, true}; }
};

/// Multiplies every element of the list by the inverse scale, and sets `*found_inf` to 1 if any
/// result is infinite or NaN; otherwise `*found_inf` is not touched. With an inverse of exactly 1
/// the gradients are only read.
///
/// Enqueues `launches_for(table)` kernels on `stream` of the current device; does not synchronise
/// and allocates nothing. Throws std::runtime_error if a launch fails.
void launch_unscale(const common::ChunkTable& table, InverseSource source, float* found_inf,
                    cudaStream_t stream);

}  // namespace torchamp::cuda
