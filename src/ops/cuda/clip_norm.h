#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/common/chunk_table.h"
#include "ops/common/clip_factor.h"
#include "ops/cuda/unscale.h"

// Unscaling with clipping to a largest 2-norm, in three steps on one stream:
//
//   launch_grad_norm     reads the gradients: overflow flag, one SquareSum for each chunk
//   launch_clip_factor   one block: the norm, and the one factor that unscales and clips; 1 after an
//                        overflow, so that the gradients stay as they are
//   launch_apply_factor  multiplies the gradients by that factor

namespace torchamp::cuda {

using common::ClipFactor;
using common::SquareSum;

/// Bytes of scratch memory that launch_grad_norm writes: one SquareSum for each chunk.
inline std::size_t square_sum_bytes(const common::ChunkTable& table) {
  return table.num_chunks() * sizeof(SquareSum);
}

/// Reads the list once: sets `*found_inf` to 1 if any element is infinite or NaN, or would be after
/// unscaling (otherwise `*found_inf` is not touched), and writes the sum of squares of the elements
/// as they are (scaled) to `sums[0 .. table.num_chunks())`. `sums` is device memory.
///
/// Enqueues `launches_for(table)` kernels on `stream` of the current device; does not synchronise
/// and allocates nothing. Throws std::runtime_error if a launch fails.
void launch_grad_norm(const common::ChunkTable& table, InverseSource source, float* found_inf,
                      SquareSum* sums, cudaStream_t stream);

/// Adds up `count` sums in a fixed order, so that the bits do not depend on the grid that formed
/// them, and writes norm and factor to `*result` in device memory:
/// factor = inverse * min(1, max_norm / (norm + 1e-6)), formed in double; or 1, so that nothing
/// gets multiplied, if `*found_inf` is not 0. `count` may be 0: the norm is 0.
///
/// Enqueues one kernel. Throws std::runtime_error if the launch fails.
void launch_clip_factor(const SquareSum* sums, std::size_t count, InverseSource source,
                        double max_norm, const float* found_inf, ClipFactor* result,
                        cudaStream_t stream);

/// Multiplies every element by `result->factor`, rounding once; does nothing if it is exactly 1.
///
/// Enqueues `launches_for(table)` kernels. Throws std::runtime_error if a launch fails.
void launch_apply_factor(const common::ChunkTable& table, const ClipFactor* result,
                         cudaStream_t stream);

}  // namespace torchamp::cuda
