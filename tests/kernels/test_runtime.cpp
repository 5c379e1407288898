#include <algorithm>
#include <stdexcept>
#include <thread>
#include <vector>

#include "catch.h"
#include "cuda_runtime.h"
#include "ops/cuda/block.cuh"

// The stand-in runtime itself: does what it imitates happen at all?

namespace {

using torchamp::cuda::block_sum;
using torchamp::cuda::raise_if_any;

constexpr int kBlock = 96;

template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel) {
  host_cuda::run_grid(blocks, threads, kernel);
}

}  // namespace

TEST_CASE("every thread of every block runs once", "[runtime][threads]") {
  std::vector<int> runs(7 * 64);
  launch(7, 64, [&] { ++runs[blockIdx.x * blockDim.x + threadIdx.x]; });
  CHECK(std::all_of(runs.begin(), runs.end(), [](int count) { return count == 1; }));
}

TEST_CASE("two blocks run at the same time", "[runtime][threads]") {
  std::atomic<int> arrived{0};
  launch(2, 32, [&] {
    if (threadIdx.x == 0) {
      ++arrived;
      while (arrived < 2) {  // for ever, if one block were run after the other
        std::this_thread::yield();
      }
    }
  });
  CHECK(arrived == 2);
}

TEST_CASE("block_sum adds up a block, several times in a row", "[runtime][threads]") {
  std::vector<double> sums(5 * kBlock);
  launch(5, kBlock, [&] {
    double total = 0.0;
    for (int round = 0; round < 4; ++round) {
      total += block_sum<kBlock>(threadIdx.x + 1000.0 * blockIdx.x + round);
    }
    sums[blockIdx.x * kBlock + threadIdx.x] = total;
  });
  for (unsigned i = 0; i < sums.size(); ++i) {
    const unsigned block = i / kBlock;
    CHECK(sums[i] == 4.0 * (kBlock * (kBlock - 1) / 2 + 1000.0 * block * kBlock) + 6.0 * kBlock);
  }
}

TEST_CASE("votes are counted anew each time", "[runtime][threads]") {
  std::vector<int> seen(3 * 64);
  launch(3, 64, [&] {
    int bits = 0;
    for (unsigned round = 0; round < 7; ++round) {
      bits |= (__syncthreads_or(round % 2 == 0 && threadIdx.x == 63 - round) != 0 ? 1 : 0) << round;
    }
    seen[blockIdx.x * 64 + threadIdx.x] = bits;
  });
  CHECK(std::all_of(seen.begin(), seen.end(), [](int bits) { return bits == 0b1010101; }));
}

TEST_CASE("the flag is raised by any thread of any block", "[runtime][threads]") {
  for (const unsigned thread : {0u, 31u, 32u, 95u}) {
    float flag = 0.0f;
    launch(4, kBlock, [&] { raise_if_any(blockIdx.x == 3 && threadIdx.x == thread, &flag); });
    CHECK(flag == 1.0f);
  }
}

TEST_CASE("a barrier that some threads miss is reported", "[runtime][threads]") {
  CHECK_THROWS_AS(launch(2, 64,
                         [] {
                           if (threadIdx.x < 32) {
                             __syncthreads();
                           }
                         }),
                  std::logic_error);
}
