#include "ops/cpu/unscale_and_clip.h"

#include <memory>

#include "ops/cpu/clip_norm.h"
#include "ops/cpu/parallel.h"

namespace torchamp::cpu {

ClipResult unscale_and_clip(const common::ChunkTable& table, float inverse, double max_norm,
                            bool found_inf) {
  const auto sums = std::make_unique_for_overwrite<SquareSum[]>(table.num_chunks());
  found_inf |= in_parallel(table, [&](uint32_t first, uint32_t last) {
    return sum_squares(table, first, last, inverse, sums.get());
  });
  const ClipFactor clip = clip_factor(sums.get(), table.num_chunks(), inverse, max_norm);
  if (!found_inf && clip.factor != 1.0) {
    in_parallel(table, [&](uint32_t first, uint32_t last) {
      apply_factor(table, first, last, clip.factor);
      return false;
    });
  }
  return {clip.norm, found_inf};
}

}  // namespace torchamp::cpu
