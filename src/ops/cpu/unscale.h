#pragma once

#include <cstdint>

#include "ops/common/chunk_table.h"

namespace torchamp::cpu {

/// Multiplies the elements of chunks [first, last) by `factor` and tells whether any result is
/// infinite or NaN. A factor of exactly 1 only reads. The instruction set is chosen at run time;
/// results do not depend on it.
bool unscale_chunks(const common::ChunkTable& table, uint32_t first, uint32_t last, float factor);

}  // namespace torchamp::cpu
