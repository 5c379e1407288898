#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/common/chunk_table.h"

namespace torchamp::cuda {

/// The chunk table travels in a kernel's parameters, which are copied with every launch. So short
/// lists use a short table, which with the other parameters stays below the 4096 bytes that every
/// driver takes; a long one fills the 32764 bytes of newer ones.
inline constexpr int kShortTable = 168;
inline constexpr int kLongTable = 1360;

/// Some consecutive entries of a ChunkTable, as a kernel's parameter.
template <int kCapacity>
struct KernelTable {
  common::ChunkEntry entries[kCapacity];
  int32_t count;
  uint32_t end_chunk;  // one past the last entry's last chunk; the first is entries[0].first_chunk
};

/// The entries that one launch takes.
struct TableRun {
  const common::ChunkEntry* entries;
  int32_t count;
  uint32_t end_chunk;
};

/// Calls `visit(run)` for each launch that a pass over the table takes. A tensor is never split
/// between launches, however large it is.
template <typename Visit>
void for_each_run(const common::ChunkTable& table, Visit visit) {
  const auto& entries = table.entries();
  for (std::size_t begin = 0; begin < entries.size(); begin += kLongTable) {
    const std::size_t end = std::min(begin + kLongTable, entries.size());
    const uint32_t end_chunk = end < entries.size() ? entries[end].first_chunk : table.num_chunks();
    visit(TableRun{&entries[begin], static_cast<int32_t>(end - begin), end_chunk});
  }
}

/// How many kernels one pass over the table takes.
inline int launches_for(const common::ChunkTable& table) {
  int launches = 0;
  for_each_run(table, [&](const TableRun&) { ++launches; });
  return launches;
}

}  // namespace torchamp::cuda
