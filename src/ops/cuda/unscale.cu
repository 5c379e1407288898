#include "ops/cuda/unscale.cuh"

namespace torchamp::cuda {

void launch_unscale(const common::ChunkTable& table, InverseSource source, float* found_inf,
                    cudaStream_t stream) {
  launch_unscale_with<kThreads>(table, source, found_inf, stream);
}

}  // namespace torchamp::cuda
