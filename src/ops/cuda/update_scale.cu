#include "ops/cuda/update_scale.cuh"

namespace torchamp::cuda {

namespace {

// One warp: there are as many flags as optimizers on this device, one or two as a rule.
constexpr int kUpdateThreads = 32;

}  // namespace

void launch_update_scale(float* scale, int32_t* growth_tracker, const float* const* found_infs,
                         int count, const common::ScaleUpdate& rule, cudaStream_t stream) {
  launch_update_scale_with<kUpdateThreads>(scale, growth_tracker, found_infs, count, rule, stream);
}

}  // namespace torchamp::cuda
