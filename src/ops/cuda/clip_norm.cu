#include "ops/cuda/clip_norm.cuh"

namespace torchamp::cuda {

namespace {

// A single block: more threads mean more loads in flight.
constexpr int kFactorThreads = 512;

}  // namespace

void launch_grad_norm(const common::ChunkTable& table, InverseSource source, float* found_inf,
                      SquareSum* sums, cudaStream_t stream) {
  launch_grad_norm_with<kThreads>(table, source, found_inf, sums, stream);
}

void launch_clip_factor(const SquareSum* sums, std::size_t count, InverseSource source,
                        double max_norm, const float* found_inf, ClipFactor* result,
                        cudaStream_t stream) {
  launch_clip_factor_with<kFactorThreads>(sums, count, source, max_norm, found_inf, result, stream);
}

void launch_apply_factor(const common::ChunkTable& table, const ClipFactor* result,
                         cudaStream_t stream) {
  launch_apply_factor_with<kThreads>(table, result, stream);
}

}  // namespace torchamp::cuda
