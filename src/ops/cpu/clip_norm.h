#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/common/chunk_table.h"
#include "ops/common/clip_factor.h"

// Unscaling with clipping to a largest 2-norm, in three steps: read the gradients, form the factor,
// multiply by it. The norm has the same bits for any number of threads and any instruction set.

namespace torchamp::cpu {

using common::ClipFactor;
using common::SquareSum;

/// Reads chunks [first, last): writes the sum of squares of the elements as they are (scaled) to
/// `sums[chunk]` and tells whether any element is infinite or NaN, or would be after unscaling.
bool sum_squares(const common::ChunkTable& table, uint32_t first, uint32_t last, float inverse,
                 SquareSum* sums);

/// Adds up `count` sums in their order.
ClipFactor clip_factor(const SquareSum* sums, std::size_t count, float inverse, double max_norm);

/// Multiplies the elements of chunks [first, last) by `factor`, rounding once. The last are
/// multiplied first: they are what `sum_squares` left in the cache.
void apply_factor(const common::ChunkTable& table, uint32_t first, uint32_t last, double factor);

}  // namespace torchamp::cpu
