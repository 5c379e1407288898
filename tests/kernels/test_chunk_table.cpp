#include <algorithm>
#include <vector>

#include "catch.h"
#include "ops/common/chunk_table.h"
#include "ops/cuda/chunk.cuh"
#include "ops/cuda/launch.cuh"

// The table that the host builds, and how blocks and threads walk over it: exhaustive, by calling
// the kernels' own walking functions one CUDA thread after the other. Addresses are never followed
// here, so sizes may be as large as they like.

namespace {

using namespace torchamp::cuda;
using torchamp::common::chunks_in;
using torchamp::common::ChunkTable;
using torchamp::common::DType;
using torchamp::common::kChunkSize;

void* address(std::size_t number) { return reinterpret_cast<void*>((number + 1) << 40); }

ChunkTable table_of(const std::vector<int64_t>& sizes, DType dtype = DType::kFloat32) {
  ChunkTable table(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    (void)table.add(address(i), sizes[i], dtype);
  }
  return table;
}

/// Elements of each tensor in the order in which the chunks cover them.
class Coverage {
 public:
  explicit Coverage(const ChunkTable& table) : table_(table), covered_(table.entries().size()) {}

  /// One run, walked by `blocks` blocks.
  template <int kCapacity>
  void walk(const TableRun& run, uint32_t blocks) {
    KernelTable<kCapacity> kernel_table;
    std::copy_n(run.entries, run.count, kernel_table.entries);
    kernel_table.count = run.count;
    kernel_table.end_chunk = run.end_chunk;
    const auto first = run.entries - table_.entries().data();
    gridDim = {blocks};
    for (uint32_t block = 0; block < blocks; ++block) {
      blockIdx = {block};
      for_each_chunk_of_block(kernel_table, [&](uint32_t chunk) {
        const ChunkRange range = chunk_range(kernel_table, chunk);
        add(static_cast<std::size_t>(first + (&range.entry - kernel_table.entries)), chunk, range);
      });
    }
  }

  [[nodiscard]] bool is_complete() const {
    for (std::size_t i = 0; i < covered_.size(); ++i) {
      ok_ &= covered_[i] == table_.entries()[i].numel;
    }
    return ok_;
  }

 private:
  // With as many blocks as chunks, or one, the chunks of a tensor come in their order; each must
  // then go on where the last one ended.
  void add(std::size_t index, uint32_t chunk, const ChunkRange& range) {
    const auto& entry = table_.entries()[index];
    ok_ &= range.entry.data == entry.data && range.count > 0 && range.count <= kChunkSize;
    ok_ &= range.begin == covered_[index];
    ok_ &= chunk == entry.first_chunk + range.begin / kChunkSize;
    covered_[index] += range.count;
  }

  const ChunkTable& table_;
  std::vector<int64_t> covered_;
  mutable bool ok_ = true;
};

bool walk_is_complete(const ChunkTable& table) {
  Coverage one_block(table);
  Coverage all_blocks(table);
  for_each_run(table, [&](const TableRun& run) {
    const uint32_t chunks = run.end_chunk - run.entries[0].first_chunk;
    if (run.count <= kShortTable) {
      one_block.walk<kShortTable>(run, 1);
      all_blocks.walk<kShortTable>(run, chunks);
    } else {
      one_block.walk<kLongTable>(run, 1);
      all_blocks.walk<kLongTable>(run, chunks);
    }
  });
  return one_block.is_complete() && all_blocks.is_complete();
}

}  // namespace

TEST_CASE("an empty tensor is left out at every place of lists of 1 to 250", "[table]") {
  int wrong = 0;
  for (std::size_t length = 1; length <= 250; ++length) {
    for (std::size_t place = 0; place < length; ++place) {
      std::vector<int64_t> sizes(length, 5);
      sizes[place] = 0;
      const ChunkTable table = table_of(sizes);
      wrong += table.entries().size() != length - 1;
      wrong += table.num_chunks() != length - 1;
      wrong += table.empty() != (length == 1);
      wrong += !walk_is_complete(table);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a list of nothing but empty tensors needs no launch", "[table]") {
  CHECK(launches_for(table_of({})) == 0);
  CHECK(launches_for(table_of({0, 0, 0})) == 0);
}

TEST_CASE("lists around a full kernel table are walked completely", "[table]") {
  const struct {
    int tensors;
    int launches;
  } kCases[] = {{1, 1},
                {kShortTable - 1, 1},
                {kShortTable, 1},
                {kShortTable + 1, 1},
                {161, 1},  // ResNet-50
                {1000, 1},
                {kLongTable - 1, 1},
                {kLongTable, 1},
                {kLongTable + 1, 2},
                {kLongTable + kShortTable, 2},
                {kLongTable + kShortTable + 1, 2},
                {2 * kLongTable, 2},
                {2 * kLongTable + 1, 3},
                {10000, 8}};
  for (const auto& [tensors, launches] : kCases) {
    for (const int64_t numel : {int64_t{1}, kChunkSize, kChunkSize + 1}) {
      const ChunkTable table =
          table_of(std::vector<int64_t>(static_cast<std::size_t>(tensors), numel));
      CHECK(launches_for(table) == launches);
      CHECK(walk_is_complete(table));
    }
  }
}

TEST_CASE("sizes around every chunk boundary are walked completely", "[table]") {
  int wrong = 0;
  for (int64_t chunks = 0; chunks <= 4; ++chunks) {
    for (int64_t more = -9; more <= 9; ++more) {
      const int64_t numel = chunks * kChunkSize + more;
      if (numel > 0) {
        wrong += chunks_in(numel) != chunks + (more > 0 ? 1 : 0);
        wrong += !walk_is_complete(table_of({numel}));
        wrong += !walk_is_complete(table_of({3, numel, 1, 0, numel, kChunkSize, 2}));
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("tensors beyond 2^31 and 2^32 elements are walked completely", "[table]") {
  constexpr int64_t k31 = int64_t{1} << 31;
  for (const int64_t numel : {k31 - 1, k31, k31 + 1, 2 * k31, 2 * k31 + 3, 10 * k31 + 1}) {
    CHECK(walk_is_complete(table_of({numel})));
    CHECK(walk_is_complete(table_of({7, numel, 0, numel + 5, 1})));
  }
}

TEST_CASE("a list is refused that has more chunks than can be counted", "[table]") {
  constexpr int64_t kMost = ((int64_t{1} << 31) - 1) * kChunkSize;
  CHECK(table_of({kMost}).num_chunks() == (uint32_t{1} << 31) - 1);
  CHECK_THROWS_AS(table_of({kMost + 1}), std::length_error);
  CHECK_THROWS_AS(table_of({kMost, 1}), std::length_error);
}

TEST_CASE("a tensor that comes twice is taken once", "[table]") {
  ChunkTable table(2000);
  for (std::size_t round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 500; ++i) {
      CHECK(table.add(address(i), 10 + static_cast<int64_t>(i), DType::kFloat32) == (round == 0));
    }
  }
  CHECK(table.entries().size() == 500);
  CHECK(walk_is_complete(table));
}

TEST_CASE("the same address with another size in bytes is another tensor", "[table]") {
  ChunkTable table(4);
  CHECK(table.add(address(0), 8, DType::kFloat32));
  CHECK_FALSE(table.add(address(0), 16, DType::kFloat16));
  CHECK(table.add(address(0), 8, DType::kFloat16));
  CHECK(table.add(address(0), 8, DType::kFloat64));
  CHECK(table.num_elements() == 24);
}

namespace {

/// Counts how often each element comes, and whether packs lie on their boundaries.
template <typename T>
struct Recorder {
  const T* data;
  std::vector<int> visits;
  bool aligned = true;

  template <int kCount>
  void operator()(const Pack<T, kCount>* place, const Pack<T, kCount>&) {
    const auto first = reinterpret_cast<const T*>(place) - data;
    aligned &= reinterpret_cast<uintptr_t>(place) % (kCount * sizeof(T)) == 0;
    for (int i = 0; i < kCount; ++i) {
      ++visits.at(static_cast<std::size_t>(first + i));
    }
  }
};

template <int kBlock, typename T>
bool visits_once(T* data, int count) {
  Recorder<T> recorder{data, std::vector<int>(static_cast<std::size_t>(count))};
  for (unsigned thread = 0; thread < kBlock; ++thread) {
    threadIdx = {thread};
    for_each_pack<kBlock>(data, count, recorder);
  }
  return recorder.aligned && std::all_of(recorder.visits.begin(), recorder.visits.end(),
                                         [](int visits) { return visits == 1; });
}

}  // namespace

TEMPLATE_TEST_CASE("every element of a chunk is visited once, whatever its start and length",
                   "[table]", float, double, torchamp::common::Half, torchamp::common::BFloat16) {
  constexpr int kBlock = 32;
  constexpr int kSize = kPackSize<TestType>;
  // More than two batches of packs of the whole block, with a head and a tail.
  constexpr int kLongest = (2 * kInFlight * kBlock + kBlock + 3) * kSize;
  std::vector<TestType> memory(kLongest + kSize);
  int wrong = 0;
  for (int offset = 0; offset < kSize; ++offset) {
    for (int count = 1; count <= kLongest; count += count < 600 ? 1 : 13) {
      wrong += !visits_once<kBlock>(memory.data() + offset, count);
    }
    for (int more = -kSize; more <= kSize; ++more) {
      for (int batches = 1; batches <= 2; ++batches) {
        wrong += !visits_once<kBlock>(memory.data() + offset,
                                      batches * kInFlight * kBlock * kSize + more);
      }
    }
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("whole chunks are visited by the block size that is shipped", "[table]", float,
                   double, torchamp::common::Half, torchamp::common::BFloat16) {
  std::vector<TestType> memory(kChunkSize + kPackSize<TestType>);
  int wrong = 0;
  for (int offset = 0; offset < kPackSize<TestType>; ++offset) {
    for (int count = kChunkSize - 9; count <= kChunkSize; ++count) {
      wrong += !visits_once<kThreads>(memory.data() + offset, count);
    }
  }
  CHECK(wrong == 0);
}
