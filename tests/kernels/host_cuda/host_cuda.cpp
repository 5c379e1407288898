#include <algorithm>
#include <cstring>
#include <latch>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_runtime.h"

thread_local dim3 threadIdx;
thread_local dim3 blockIdx;
thread_local dim3 blockDim;
thread_local dim3 gridDim;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid configuration argument";
}

cudaError_t cudaGetLastError() {
  return std::exchange(host_cuda::device().last_error, cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = static_cast<int>(host_cuda::device().multiprocessors);
  return cudaSuccess;
}

namespace host_cuda {

namespace {

/// The calling CUDA thread.
struct Thread {
  Block* block = nullptr;
  unsigned barriers = 0;  // passed in this block
  unsigned votes = 0;
};
thread_local Thread current;

/// Threads that run one block after the other: blocks slot, slot + step, slot + 2 * step, ...
class Slot {
 public:
  Slot(unsigned first_block, unsigned step, unsigned blocks, unsigned threads,
       const std::function<void()>& body)
      : first_block_(first_block),
        step_(step),
        blocks_(blocks),
        threads_(threads),
        body_(body),
        between_(static_cast<std::ptrdiff_t>(threads)),
        passed_(threads) {}

  void run(unsigned thread) {
    threadIdx = {thread};
    blockDim = {threads_};
    gridDim = {blocks_};
    for (unsigned block = first_block_; block < blocks_; block += step_) {
      if (thread == 0) {
        block_ = std::make_unique<Block>(threads_);
      }
      between_.arrive_and_wait();
      blockIdx = {block};
      current = {block_.get()};
      body_();
      leave(thread);
    }
  }

  [[nodiscard]] bool barriers_agree() const { return barriers_agree_; }

 private:
  /// A thread that returned is not waited for any more.
  void leave(unsigned thread) {
    passed_[thread] = current.barriers;
    block_->barrier.arrive_and_drop();
    block_->warps[thread / kWarp].barrier.arrive_and_drop();
    between_.arrive_and_wait();
    if (thread == 0) {
      barriers_agree_ &= std::all_of(passed_.begin(), passed_.end(),
                                     [&](unsigned passed) { return passed == passed_[0]; });
    }
  }

  const unsigned first_block_;
  const unsigned step_;
  const unsigned blocks_;
  const unsigned threads_;
  const std::function<void()>& body_;
  std::barrier<> between_;
  std::unique_ptr<Block> block_;
  std::vector<unsigned> passed_;  // barriers, by thread
  bool barriers_agree_ = true;
};

/// Threads that are kept from launch to launch: to start one costs milliseconds under a sanitizer.
class Pool {
 public:
  Pool() = default;
  ~Pool() {
    for (const auto& worker : workers_) {
      worker->job = nullptr;
      worker->start.release();
    }
    for (const auto& worker : workers_) {
      worker->thread.join();
    }
  }

  /// Runs `job(index)` for all indices below `count` at the same time.
  void run(std::size_t count, const std::function<void(std::size_t)>& job) {
    while (workers_.size() < count) {
      workers_.push_back(std::make_unique<Worker>(workers_.size()));
    }
    std::latch done(static_cast<std::ptrdiff_t>(count));
    const std::function<void(std::size_t)> counted = [&](std::size_t index) {
      job(index);
      done.count_down();
    };
    for (std::size_t index = 0; index < count; ++index) {
      workers_[index]->job = &counted;
      workers_[index]->start.release();
    }
    done.wait();
  }

 private:
  struct Worker {
    explicit Worker(std::size_t index) : thread([this, index] { work(index); }) {}

    void work(std::size_t index) {
      for (start.acquire(); job != nullptr; start.acquire()) {
        (*job)(index);
      }
    }

    std::binary_semaphore start{0};
    const std::function<void(std::size_t)>* job = nullptr;
    std::thread thread;  // last: it uses the others at once
  };

  std::vector<std::unique_ptr<Worker>> workers_;
};

std::atomic<std::size_t> shared_bytes{0};

}  // namespace

Device& device() {
  static Device instance;
  return instance;
}

Block::Block(unsigned threads)
    : threads(threads),
      barrier(static_cast<std::ptrdiff_t>(threads)),
      warps(new Warp[threads / kWarp]),
      shared(new std::byte[kSharedBytes]) {
  std::memset(shared, 0xff, kSharedBytes);  // NaN: what is read before it was written shows
}

Block::~Block() {
  delete[] warps;
  delete[] shared;
}

Block& block() { return *current.block; }

void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body) {
  if (threads % kWarp != 0) {
    throw std::logic_error("host_cuda: only whole warps");
  }
  ++device().launches;
  device().last_grid = blocks;
  const unsigned slots = std::min(blocks, device().concurrent_blocks);
  std::vector<std::unique_ptr<Slot>> running;
  for (unsigned slot = 0; slot < slots; ++slot) {
    running.push_back(std::make_unique<Slot>(slot, slots, blocks, threads, body));
  }
  static Pool pool;
  pool.run(std::size_t{slots} * threads, [&](std::size_t index) {
    running[index / threads]->run(static_cast<unsigned>(index % threads));
  });
  for (const auto& slot : running) {
    if (!slot->barriers_agree()) {
      throw std::logic_error("host_cuda: a barrier was not reached by all threads of its block");
    }
  }
}

void synchronize() {
  ++current.barriers;
  current.block->barrier.arrive_and_wait();
}

// Three votes in turn: when a thread sets the next one back, before the barrier of this one, all
// others have passed the barrier before, so that nobody still reads it, and none has used it again.
int any(int predicate) {
  Block& own = *current.block;
  const unsigned turn = current.votes++;
  if (threadIdx.x == 0) {
    own.votes[(turn + 1) % 3].store(0, std::memory_order_relaxed);
  }
  if (predicate != 0) {
    own.votes[turn % 3].store(1, std::memory_order_relaxed);
  }
  synchronize();
  return own.votes[turn % 3].load(std::memory_order_relaxed);
}

uint64_t exchange_in_warp(uint64_t bits, unsigned from_lane) {
  Warp& warp = current.block->warps[threadIdx.x / kWarp];
  warp.lanes[threadIdx.x % kWarp] = bits;
  warp.barrier.arrive_and_wait();
  const uint64_t received = warp.lanes[from_lane];
  warp.barrier.arrive_and_wait();
  return received;
}

std::size_t reserve_shared(std::size_t bytes) {
  const std::size_t offset = shared_bytes.fetch_add((bytes + 15) / 16 * 16);
  if (offset + bytes > kSharedBytes) {
    throw std::logic_error("host_cuda: out of shared memory");
  }
  return offset;
}

}  // namespace host_cuda
