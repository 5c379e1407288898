#include "ops/common/chunk_table.h"

#include <stdexcept>

namespace torchamp::common {

namespace {

std::size_t slots_for(std::size_t tensors) {
  std::size_t slots = 4;
  while (slots < 2 * tensors) {
    slots *= 2;
  }
  return slots;
}

int64_t bytes_of(int64_t numel, DType dtype) {
  return numel * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

ChunkTable::ChunkTable(std::size_t max_tensors)
    : slots_(slots_for(max_tensors), 0), mask_(slots_.size() - 1) {
  entries_.reserve(max_tensors);
}

bool ChunkTable::take_later_slot(std::size_t slot, const void* data, int64_t numel, DType dtype) {
  for (; slots_[slot] != 0; slot = (slot + 1) & mask_) {
    const ChunkEntry& other = entries_[slots_[slot] - 1];
    if (other.data == data && bytes_of(other.numel, other.dtype) == bytes_of(numel, dtype)) {
      return false;
    }
  }
  slots_[slot] = static_cast<uint32_t>(entries_.size()) + 1;
  return true;
}

void ChunkTable::throw_too_long() {
  throw std::length_error("torchamp: more than 2^45 gradient elements in one list");
}

}  // namespace torchamp::common
