#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/common/chunk_table.h"

namespace torchamp::cpu {

/// A stretch of one tensor's memory.
struct Span {
  void* data;
  int64_t numel;
  common::DType dtype;
  uint32_t first_chunk;
};

/// Calls `visit` with what chunks [first, last) cover of each tensor: a run of chunks is one
/// stretch of memory, there is no need to go chunk by chunk.
template <typename Visit>
void for_each_span(const common::ChunkTable& table, uint32_t first, uint32_t last, Visit visit) {
  if (first >= last) {
    return;
  }
  const auto& entries = table.entries();
  auto entry =
      entries.begin() + common::find_entry(entries.data(), static_cast<int>(entries.size()), first);
  for (; entry != entries.end() && entry->first_chunk < last; ++entry) {
    const uint32_t chunk = std::max(first, entry->first_chunk);
    const int64_t begin = (chunk - entry->first_chunk) * common::kChunkSize;
    const int64_t end = std::min(entry->numel, (last - entry->first_chunk) * common::kChunkSize);
    auto* data =
        static_cast<char*>(entry->data) + begin * static_cast<int64_t>(size_of(entry->dtype));
    visit(Span{data, end - begin, entry->dtype, chunk});
  }
}

/// Multiplies the elements of chunks [first, last) by `factor` and tells whether any result is
/// infinite or NaN. A factor of exactly 1 only reads. The instruction set is chosen at run time;
/// results do not depend on it.
bool unscale_chunks(const common::ChunkTable& table, uint32_t first, uint32_t last, double factor);

}  // namespace torchamp::cpu
