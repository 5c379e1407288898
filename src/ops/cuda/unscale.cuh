#pragma once

#include "ops/cuda/block.cuh"
#include "ops/cuda/chunk.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/unscale.h"

namespace torchamp::cuda {

/// Multiplies in place and remembers whether a result was not finite.
struct Unscale {
  float inverse;
  bool nonfinite = false;

  template <typename T, int kCount>
  __device__ void operator()(Pack<T, kCount>* place, Pack<T, kCount> pack) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      T& item = pack.items[i];
      item = common::multiplied(item, inverse);
      nonfinite |= common::is_nonfinite(item);
    }
    if (inverse != 1.0f) {
      *place = pack;
    }
  }
};

template <int kBlock, int kCapacity>
__global__ void __launch_bounds__(kBlock, kResidentBlocks<kBlock>)
    unscale_kernel(const __grid_constant__ KernelTable<kCapacity> table, InverseSource source,
                   float* found_inf) {
  Unscale unscale{load_inverse(source)};
  for_each_chunk_of_block(
      table, [&](uint32_t chunk) { for_each_pack_in_chunk<kBlock>(table, chunk, unscale); });
  raise_if_any(unscale.nonfinite, found_inf);
}

template <int kBlock>
void launch_unscale_with(const common::ChunkTable& table, InverseSource source, float* found_inf,
                         cudaStream_t stream) {
  launch_over_table("unscale", &unscale_kernel<kBlock, kShortTable>,
                    &unscale_kernel<kBlock, kLongTable>, kBlock, stream, table, source, found_inf);
}

}  // namespace torchamp::cuda
