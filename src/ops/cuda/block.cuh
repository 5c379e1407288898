#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/common/square_sum.h"

// What the threads of one block do together.

namespace torchamp::cuda {

inline constexpr int kWarpSize = 32;
inline constexpr uint32_t kWholeWarp = 0xffffffffu;

/// An array in a block's shared memory.
template <typename T, int kCount>
struct Shared {
  T items[kCount];
  __device__ T& operator[](int index) { return items[index]; }
};

/// Sets `*found_inf` to 1 if `found` holds in any thread of the block. Blocks do so at once, and
/// only ever with the same value: no order is needed, but the store must be atomic.
__device__ inline void raise_if_any(bool found, float* found_inf) {
  if (__syncthreads_or(found) && threadIdx.x == 0) {
    atomicExch(found_inf, 1.0f);
  }
}

/// The sum over the block, in every thread, always in the same order.
template <int kBlock>
__device__ double block_sum(double value) {
  constexpr int kWarps = kBlock / kWarpSize;
  __shared__ Shared<double, kWarps> warp_sums;
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, offset);
  }
  __syncthreads();  // an earlier call's sums have been read
  if (threadIdx.x % kWarpSize == 0) {
    warp_sums[static_cast<int>(threadIdx.x) / kWarpSize] = value;
  }
  __syncthreads();
  double total = warp_sums[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    total += warp_sums[warp];
  }
  return total;
}

template <int kBlock>
__device__ common::SquareSum block_sum(const common::SquareSum& value) {
  common::SquareSum total{block_sum<kBlock>(value.middle), 0.0, 0.0};
  if (__syncthreads_or(value.large != 0.0 || value.small != 0.0)) {  // rare: float64 lists only
    total.large = block_sum<kBlock>(value.large);
    total.small = block_sum<kBlock>(value.small);
  }
  return total;
}

}  // namespace torchamp::cuda
