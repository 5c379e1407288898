#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/common/scale_update.h"

namespace torchamp::cuda {

/// Most overflow flags that one update combines: their addresses travel in the kernel's parameters,
/// which every driver takes up to 4 KB.
inline constexpr int kMaxFlags = 500;

/// Applies the scale-update rule in place, after an overflow if any of the `count` flags in device
/// memory is not 0 (NaN is not 0).
///
/// Enqueues one kernel on `stream` of the current device; does not synchronise and allocates
/// nothing. Throws std::length_error if `count` is above kMaxFlags, std::runtime_error if the
/// launch fails.
void launch_update_scale(float* scale, int32_t* growth_tracker, const float* const* found_infs,
                         int count, const common::ScaleUpdate& rule, cudaStream_t stream);

}  // namespace torchamp::cuda
