#pragma once

// Test-only stand-in for the CUDA runtime and the device language, so that a C++ compiler builds
// the kernels and their launch code unchanged. Every CUDA thread is a std::thread, at least two
// blocks run at once, and what synchronises on a device synchronises here, nothing else: sanitizers
// see the rest.

#include <atomic>
#include <barrier>
#include <bit>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>

#include "cuda_runtime_api.h"

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};

extern thread_local dim3 threadIdx;
extern thread_local dim3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;

namespace host_cuda {

constexpr unsigned kWarp = 32;
constexpr std::size_t kSharedBytes = 48 * 1024;
constexpr std::size_t kParameterBytes = 32764;

/// What the pretended device looks like, and what happened on it. Set between launches.
struct Device {
  unsigned multiprocessors = 3;
  unsigned blocks_per_multiprocessor = 2;
  unsigned concurrent_blocks = 2;          // blocks that really run at the same time
  cudaError_t launch_error = cudaSuccess;  // what the next launches return, without running
  cudaError_t last_error = cudaSuccess;    // of a launch, until cudaGetLastError() is asked
  int launches = 0;
  unsigned last_grid = 0;
};
Device& device();

struct Warp {
  std::barrier<> barrier{kWarp};
  uint64_t lanes[kWarp];
};

/// A block while it runs.
struct Block {
  explicit Block(unsigned threads);
  ~Block();

  const unsigned threads;
  std::barrier<> barrier;
  Warp* const warps;
  std::atomic<int> votes[3] = {};  // used in turn, see any()
  std::byte* const shared;
};

/// The block that the calling thread belongs to.
Block& block();

/// Runs `body` in every thread of every block. Throws std::logic_error if the threads of a block
/// passed different numbers of barriers.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body);

void synchronize();
int any(int predicate);
uint64_t exchange_in_warp(uint64_t bits, unsigned from_lane);

/// Reserves an offset in the shared memory of all blocks.
std::size_t reserve_shared(std::size_t bytes);

/// Stands for torchamp::cuda::Shared, the kernels' type for arrays in shared memory: the variable
/// is one for the whole process, the elements are the running block's own.
template <typename T, int kCount>
class Shared {
 public:
  T& operator[](int index) {
    if (index < 0 || index >= kCount) {
      __builtin_trap();
    }
    return reinterpret_cast<T*>(block().shared + offset_)[index];
  }

 private:
  std::size_t offset_ = reserve_shared(sizeof(T) * kCount);
};

}  // namespace host_cuda

// --- the device language ---
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static ::host_cuda::  // `__shared__ Shared<T, n> name`

inline void __syncthreads() { host_cuda::synchronize(); }
inline int __syncthreads_or(int predicate) { return host_cuda::any(predicate); }

inline double __shfl_xor_sync(unsigned, double value, int lane_mask) {
  const unsigned lane = threadIdx.x % host_cuda::kWarp;
  return std::bit_cast<double>(host_cuda::exchange_in_warp(
      std::bit_cast<uint64_t>(value), lane ^ static_cast<unsigned>(lane_mask)));
}

inline float atomicExch(float* address, float value) {
  return std::atomic_ref<float>(*address).exchange(value, std::memory_order_relaxed);
}

// --- launching ---
template <typename... Params>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Params...), int,
                                                          size_t) {
  *blocks = static_cast<int>(host_cuda::device().blocks_per_multiprocessor);
  return cudaSuccess;
}

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  static_assert((sizeof(Params) + ... + 0) <= host_cuda::kParameterBytes);
  static_assert((std::is_trivially_copyable_v<Params> && ...));
  if (host_cuda::device().launch_error != cudaSuccess) {
    return host_cuda::device().last_error = host_cuda::device().launch_error;
  }
  if (config->gridDim.x == 0 || config->blockDim.x == 0 || config->blockDim.x > 1024) {
    return cudaErrorInvalidConfiguration;
  }
  const auto call = [&](const Params&... params) {
    host_cuda::run_grid(config->gridDim.x, config->blockDim.x, [&] { kernel(params...); });
  };
  call(std::forward<Args>(args)...);
  return cudaSuccess;
}
