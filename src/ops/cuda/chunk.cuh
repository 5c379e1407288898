#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/common/chunk_table.h"
#include "ops/common/element.h"
#include "ops/cuda/kernel_table.h"
#include "ops/cuda/unscale.h"

// How the blocks of a grid walk over the chunks of a list, and the threads of a block over a chunk.

namespace torchamp::cuda {

/// Threads in a block. Small enough that a list of many tiny tensors does not leave a large device
/// half empty: one block works on one chunk at a time.
inline constexpr int kThreads = 256;

/// Packs that a thread loads before it uses the first: latency is hidden by bytes in flight.
inline constexpr int kInFlight = 4;

/// Blocks that a multiprocessor must hold, which limits a thread to 64 registers.
template <int kBlock>
inline constexpr int kResidentBlocks = 1024 / kBlock;

/// Elements that are loaded and stored by one instruction.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T items[kCount];
};

/// Elements of a 16-byte pack.
template <typename T>
inline constexpr int kPackSize = 16 / static_cast<int>(sizeof(T));

/// Elements at `data` before the first 16-byte boundary.
template <typename T>
__device__ int elements_to_boundary(const T* data) {
  const auto beyond = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data)) % 16;
  return beyond == 0 ? 0 : static_cast<int>((16 - beyond) / sizeof(T));
}

/// Calls `visit(place, pack)` with the `count` elements at `data`, cut into 16-byte packs; what
/// lies before the first and after the last boundary comes as packs of one element.
template <int kBlock, typename T, typename Visit>
__device__ void for_each_pack(T* data, int count, Visit& visit) {
  constexpr int kSize = kPackSize<T>;
  static_assert(kBlock >= 2 * kSize, "a thread takes one element outside the packs at most");
  const int to_boundary = elements_to_boundary(data);
  const int head = to_boundary < count ? to_boundary : count;
  const int packs = (count - head) / kSize;
  const int thread = static_cast<int>(threadIdx.x);

  auto* const places = reinterpret_cast<Pack<T, kSize>*>(data + head);
#pragma unroll 1
  for (int first = thread; first < packs; first += kInFlight * kBlock) {
    Pack<T, kSize> batch[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int index = first + i * kBlock;
      batch[i] = index < packs ? places[index] : Pack<T, kSize>{};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i * kBlock < packs) {
        visit(&places[first + i * kBlock], batch[i]);
      }
    }
  }

  const int in_packs = packs * kSize;
  if (thread < count - in_packs) {
    auto* const place =
        reinterpret_cast<Pack<T, 1>*>(data + (thread < head ? thread : thread + in_packs));
    visit(place, *place);
  }
}

/// The elements of one chunk: `count` of them from element `begin` of the tensor on.
struct ChunkRange {
  const common::ChunkEntry& entry;
  int64_t begin;
  int count;
};

template <int kCapacity>
__device__ ChunkRange chunk_range(const KernelTable<kCapacity>& table, uint32_t chunk) {
  const common::ChunkEntry& entry =
      table.entries[common::find_entry(table.entries, table.count, chunk)];
  const int64_t begin = static_cast<int64_t>(chunk - entry.first_chunk) * common::kChunkSize;
  const int64_t left = entry.numel - begin;
  return {entry, begin, static_cast<int>(left < common::kChunkSize ? left : common::kChunkSize)};
}

/// Calls `visit(place, pack)` for all elements of one chunk.
template <int kBlock, int kCapacity, typename Visit>
__device__ void for_each_pack_in_chunk(const KernelTable<kCapacity>& table, uint32_t chunk,
                                       Visit& visit) {
  const auto [entry, begin, count] = chunk_range(table, chunk);
  switch (entry.dtype) {
    case common::DType::kFloat32:
      return for_each_pack<kBlock>(static_cast<float*>(entry.data) + begin, count, visit);
    case common::DType::kFloat64:
      return for_each_pack<kBlock>(static_cast<double*>(entry.data) + begin, count, visit);
    case common::DType::kFloat16:
      return for_each_pack<kBlock>(static_cast<common::Half*>(entry.data) + begin, count, visit);
    case common::DType::kBFloat16:
      return for_each_pack<kBlock>(static_cast<common::BFloat16*>(entry.data) + begin, count,
                                   visit);
  }
}

/// Calls `visit_chunk(chunk)` for the chunks of this block.
template <int kCapacity, typename VisitChunk>
__device__ void for_each_chunk_of_block(const KernelTable<kCapacity>& table,
                                        VisitChunk visit_chunk) {
  for (uint32_t chunk = table.entries[0].first_chunk + blockIdx.x; chunk < table.end_chunk;
       chunk += gridDim.x) {
    visit_chunk(chunk);
  }
}

__device__ inline float load_inverse(InverseSource source) {
  if (source.value == nullptr) {
    return 1.0f;
  }
  return source.is_inverse ? *source.value : common::inverse(*source.value);
}

}  // namespace torchamp::cuda
