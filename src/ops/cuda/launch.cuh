#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "ops/cuda/kernel_table.h"

namespace torchamp::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // forget it: the next check of somebody else would report it
    throw std::runtime_error(std::string("torchamp: ") + what + ": " + cudaGetErrorString(error));
  }
}

/// Enqueues a kernel; an error names it.
template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), uint32_t blocks, int threads,
            cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

/// Blocks of the kernel that the current device holds at once. Asked anew for each launch: it
/// differs between devices, and a process-wide cache would have to survive threads and fork.
template <typename... Params>
uint32_t resident_blocks(const char* name, void (*kernel)(Params...), int threads) {
  int device = 0;
  int processors = 0;
  int blocks = 0;
  check(cudaGetDevice(&device), name);
  check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), name);
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0), name);
  return static_cast<uint32_t>(processors * blocks);
}

/// Enqueues a kernel over one run of the table: as many blocks as the device holds at once, or one
/// for each chunk if there are fewer chunks.
template <int kCapacity, typename... Params, typename... Args>
void launch_run(const char* name, void (*kernel)(Params...), int threads, cudaStream_t stream,
                const TableRun& run, const Args&... args) {
  KernelTable<kCapacity> table;  // entries beyond `count` stay uninitialised and are never read
  std::copy_n(run.entries, run.count, table.entries);
  table.count = run.count;
  table.end_chunk = run.end_chunk;
  const uint32_t chunks = run.end_chunk - run.entries[0].first_chunk;
  const uint32_t blocks = std::min(chunks, resident_blocks(name, kernel, threads));
  launch(name, kernel, blocks, threads, stream, table, args...);
}

/// Enqueues a kernel over the whole table. The kernel comes for both capacities, and takes
/// (KernelTable, args...).
template <typename ShortKernel, typename LongKernel, typename... Args>
void launch_over_table(const char* name, ShortKernel short_kernel, LongKernel long_kernel,
                       int threads, cudaStream_t stream, const common::ChunkTable& table,
                       const Args&... args) {
  for_each_run(table, [&](const TableRun& run) {
    if (run.count <= kShortTable) {
      launch_run<kShortTable>(name, short_kernel, threads, stream, run, args...);
    } else {
      launch_run<kLongTable>(name, long_kernel, threads, stream, run, args...);
    }
  });
}

}  // namespace torchamp::cuda
