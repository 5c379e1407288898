#pragma once

#include <string>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/update_scale.h"

namespace torchamp::cuda {

/// Addresses of the overflow flags, as a kernel's parameter.
struct FlagList {
  const float* flags[kMaxFlags];
  int32_t count;
};

template <int kBlock>
__global__ void __launch_bounds__(kBlock)
    update_scale_kernel(const __grid_constant__ FlagList list, float* scale,
                        int32_t* growth_tracker, common::ScaleUpdate rule) {
  bool found = false;
  for (int i = static_cast<int>(threadIdx.x); i < list.count; i += kBlock) {
    found |= *list.flags[i] != 0.0f;
  }
  const bool overflow = __syncthreads_or(found);
  if (threadIdx.x == 0) {
    const common::ScaleState next = common::updated({*scale, *growth_tracker}, overflow, rule);
    *scale = next.scale;
    *growth_tracker = next.growth_tracker;
  }
}

template <int kBlock>
void launch_update_scale_with(float* scale, int32_t* growth_tracker, const float* const* found_infs,
                              int count, const common::ScaleUpdate& rule, cudaStream_t stream) {
  if (count > kMaxFlags) {
    throw std::length_error("torchamp: update_scale combines " + std::to_string(kMaxFlags) +
                            " overflow flags at most, got " + std::to_string(count));
  }
  FlagList list;  // flags beyond `count` stay uninitialised and are never read
  std::copy_n(found_infs, count, list.flags);
  list.count = count;
  launch("update_scale", &update_scale_kernel<kBlock>, 1, kBlock, stream, list, scale,
         growth_tracker, rule);
}

}  // namespace torchamp::cuda
