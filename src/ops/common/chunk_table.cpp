#include "ops/common/chunk_table.h"

#include <limits>
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

// Multiplicative (Fibonacci) hash. Allocators align to 64 bytes or so: the low bits say nothing.
std::size_t hash(const void* data) {
  return (reinterpret_cast<uintptr_t>(data) * 0x9e3779b97f4a7c15u) >> 32;
}

int64_t bytes_of(int64_t numel, DType dtype) {
  return numel * static_cast<int64_t>(size_of(dtype));
}

}  // namespace

ChunkTable::ChunkTable(std::size_t max_tensors)
    : slots_(slots_for(max_tensors), 0), mask_(slots_.size() - 1) {
  entries_.reserve(max_tensors);
}

bool ChunkTable::add(void* data, int64_t numel, DType dtype) {
  if (numel == 0 || !insert_key(data, numel, dtype)) {
    return false;
  }
  const int64_t chunks = chunks_in(numel);
  if (chunks > std::numeric_limits<int32_t>::max() - static_cast<int64_t>(num_chunks_)) {
    throw std::length_error("torchamp: more than 2^45 gradient elements in one list");
  }
  entries_.push_back({data, numel, num_chunks_, dtype});
  num_chunks_ += static_cast<uint32_t>(chunks);
  num_elements_ += numel;
  return true;
}

bool ChunkTable::insert_key(const void* data, int64_t numel, DType dtype) {
  for (std::size_t slot = hash(data) & mask_;; slot = (slot + 1) & mask_) {
    const uint32_t taken = slots_[slot];
    if (taken == 0) {
      slots_[slot] = static_cast<uint32_t>(entries_.size()) + 1;
      return true;
    }
    const ChunkEntry& other = entries_[taken - 1];
    if (other.data == data && bytes_of(other.numel, other.dtype) == bytes_of(numel, dtype)) {
      return false;
    }
  }
}

}  // namespace torchamp::common
