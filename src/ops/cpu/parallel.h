#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/common/chunk_table.h"

namespace torchamp::cpu {

/// Below this many elements a thread, waking another costs more than it gives.
inline constexpr int64_t kElementsPerThread = 32768;

/// Cuts the table into `parts` runs of chunks of about the same number of elements.
inline std::vector<uint32_t> cut(const common::ChunkTable& table, int64_t parts) {
  std::vector<uint32_t> bounds{0};
  int64_t before = 0;  // elements in the entries before this one
  for (const common::ChunkEntry& entry : table.entries()) {
    for (auto part = static_cast<int64_t>(bounds.size()); part < parts; ++part) {
      const int64_t wanted = table.num_elements() / parts * part - before;
      if (wanted >= entry.numel) {
        break;
      }
      bounds.push_back(entry.first_chunk +
                       static_cast<uint32_t>(std::max<int64_t>(wanted, 0) / common::kChunkSize));
    }
    before += entry.numel;
  }
  bounds.push_back(table.num_chunks());
  return bounds;
}

/// Whether this process was forked from one that had the library loaded. OpenMP's threads do not
/// survive a fork, and a parallel region there would wait for them for ever.
bool is_forked_child();

/// Calls `work(first, last)` for runs of chunks that make up the whole table, on ATen's threads.
/// Returns whether any call returned true.
template <typename Work>
bool in_parallel(const common::ChunkTable& table, Work work) {
  const int64_t parts =
      std::clamp<int64_t>(table.num_elements() / kElementsPerThread, 1, at::get_num_threads());
  if (parts == 1 || is_forked_child()) {
    return work(uint32_t{0}, table.num_chunks());
  }
  const std::vector<uint32_t> bounds = cut(table, parts);
  std::atomic<bool> any{false};
  at::parallel_for(0, static_cast<int64_t>(bounds.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    if (work(bounds[static_cast<std::size_t>(begin)], bounds[static_cast<std::size_t>(end)])) {
      any.store(true, std::memory_order_relaxed);
    }
  });
  return any;
}

}  // namespace torchamp::cpu
