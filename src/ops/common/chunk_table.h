#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ops/common/dtype.h"
#include "ops/common/host_device.h"

// One job over a whole list of tensors: every tensor is cut into chunks of kChunkSize elements, and
// the chunks of all tensors are numbered through. Threads (CPU) and blocks (CUDA) take chunks by
// number; a binary search finds the tensor that a chunk belongs to.
//
//   tensor      0                 1   2
//   elements    40000             64  16385
//   chunks      [0    ][1    ][2 ][3 ][4    ][5]
//   first_chunk 0                 3   4

namespace torchamp::common {

/// Elements in a chunk; only the last chunk of a tensor is shorter. Fixed, because sums over chunks
/// must not depend on the number of threads.
inline constexpr int64_t kChunkSize = 16384;

/// One tensor of the list. 24 bytes, so that 1364 of them fit into a CUDA kernel's parameters.
struct ChunkEntry {
  void* data;
  int64_t numel;
  uint32_t first_chunk;
  DType dtype;
};

constexpr int64_t chunks_in(int64_t numel) { return (numel + kChunkSize - 1) / kChunkSize; }

/// Index of the entry that `chunk` belongs to: the last one whose first_chunk is not above it.
TORCHAMP_HOST_DEVICE inline int find_entry(const ChunkEntry* entries, int count, uint32_t chunk) {
  int low = 0;
  int high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (entries[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The list of tensors of one job. Tensors without elements are left out, and a tensor that is
/// there already (same address, same size in bytes) is not added again: it must be unscaled once.
class ChunkTable {
 public:
  /// `max_tensors` is the most that will be added.
  explicit ChunkTable(std::size_t max_tensors);

  /// Adds `numel` elements at `data`. False if the tensor was left out.
  bool add(void* data, int64_t numel, DType dtype);

  [[nodiscard]] const std::vector<ChunkEntry>& entries() const { return entries_; }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] int64_t num_elements() const { return num_elements_; }
  [[nodiscard]] uint32_t num_chunks() const { return num_chunks_; }

 private:
  [[nodiscard]] bool insert_key(const void* data, int64_t numel, DType dtype);

  std::vector<ChunkEntry> entries_;
  std::vector<uint32_t> slots_;  // open hash over entries_, 0 is free, else index + 1
  std::size_t mask_;
  int64_t num_elements_ = 0;
  uint32_t num_chunks_ = 0;
};

}  // namespace torchamp::common
