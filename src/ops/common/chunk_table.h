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

/// One tensor of the list. 24 bytes, so that 1360 of them fit into a CUDA kernel's parameters.
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
  bool add(void* data, int64_t numel, DType dtype) {
    if (numel == 0) {
      return false;
    }
    const std::size_t slot = hash(data) & mask_;
    if (slots_[slot] == 0) {
      slots_[slot] = static_cast<uint32_t>(entries_.size()) + 1;
    } else if (!take_later_slot(slot, data, numel, dtype)) {
      return false;
    }
    const int64_t chunks = chunks_in(numel);
    if (chunks > INT32_MAX - static_cast<int64_t>(num_chunks_)) {
      throw_too_long();
    }
    entries_.push_back({data, numel, num_chunks_, dtype});
    num_chunks_ += static_cast<uint32_t>(chunks);
    num_elements_ += numel;
    return true;
  }

  [[nodiscard]] const std::vector<ChunkEntry>& entries() const { return entries_; }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] int64_t num_elements() const { return num_elements_; }
  [[nodiscard]] uint32_t num_chunks() const { return num_chunks_; }

 private:
  // Multiplicative (Fibonacci) hash. Allocators align to 64 bytes or so: the low bits say nothing.
  [[nodiscard]] static std::size_t hash(const void* data) {
    return (reinterpret_cast<uintptr_t>(data) * 0x9e3779b97f4a7c15u) >> 32;
  }

  /// For a tensor whose slot is taken. False if it is in the table already.
  bool take_later_slot(std::size_t slot, const void* data, int64_t numel, DType dtype);
  [[noreturn]] static void throw_too_long();

  std::vector<ChunkEntry> entries_;
  std::vector<uint32_t> slots_;  // open hash over entries_, 0 is free, else index + 1
  std::size_t mask_;
  int64_t num_elements_ = 0;
  uint32_t num_chunks_ = 0;
};

}  // namespace torchamp::common
