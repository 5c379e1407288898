#pragma once

#include "ops/common/chunk_table.h"

namespace torchamp::cpu {

struct ClipResult {
  double norm;     // 2-norm of the true (unscaled) gradients
  bool found_inf;  // that it was handed in, or that a gradient is not finite: nothing was changed
};

/// Multiplies all gradients by `inverse`, and by a further factor if their 2-norm would be above
/// `max_norm`; leaves them as they are if `found_inf` is set, or gets set by one of them. On ATen's
/// threads.
ClipResult unscale_and_clip(const common::ChunkTable& table, float inverse, double max_norm,
                            bool found_inf);

}  // namespace torchamp::cpu
