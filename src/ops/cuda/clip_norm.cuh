#pragma once

#include <type_traits>

#include "ops/common/clip_factor.h"
#include "ops/cuda/block.cuh"
#include "ops/cuda/chunk.cuh"
#include "ops/cuda/clip_norm.h"
#include "ops/cuda/launch.cuh"

namespace torchamp::cuda {

__device__ inline float widened(float value) { return value; }
__device__ inline double widened(double value) { return value; }
__device__ inline float widened(common::Half value) { return common::to_float(value); }
__device__ inline float widened(common::BFloat16 value) { return common::to_float(value); }

/// Whether the sum of a pack's squares, formed in its own type, is as good as one formed in double:
/// nothing overflowed, and what went below the smallest number does not matter beside it.
__device__ inline bool is_trusted(float squares) {
  return squares >= 0x1p-100f && squares <= 0x1p120f;
}
__device__ inline bool is_trusted(double squares) {
  return squares >= 0x1p-900 && squares <= 0x1p970;
}

__device__ inline void add_square(SquareSum& sum, float value) {
  const double wide = value;
  sum.middle += wide * wide;  // the square of any float is a normal double
}
__device__ inline void add_square(SquareSum& sum, double value) { sum.add(value); }

template <typename T, int kCount>
__device__ void add_squares(SquareSum& sum, const Pack<T, kCount>& pack) {
  using Wide = decltype(widened(T{}));
  Wide squares = 0;
  bool any = false;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const T item = pack.items[i];
    const Wide value = widened(item);
    squares += value * value;
    any |= value != 0;  // true for NaN
  }
  if (is_trusted(squares)) {
    // One conversion and one addition in double for each pack: many devices are slow in double.
    sum.middle += squares;
  } else if (any) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T item = pack.items[i];
      add_square(sum, widened(item));
    }
  }
}

/// Sums squares and remembers whether an element would not be finite once it is unscaled.
struct SumSquares {
  float inverse;
  bool nonfinite = false;
  SquareSum sum{};

  template <typename T, int kCount>
  __device__ void operator()(const Pack<T, kCount>*, const Pack<T, kCount>& pack) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const T item = pack.items[i];
      nonfinite |= common::is_nonfinite(common::multiplied(item, inverse));
    }
    add_squares(sum, pack);
  }
};

template <int kBlock, int kCapacity>
__global__ void __launch_bounds__(kBlock, kResidentBlocks<kBlock>)
    grad_norm_kernel(const __grid_constant__ KernelTable<kCapacity> table, InverseSource source,
                     float* found_inf, SquareSum* sums) {
  const float inverse = load_inverse(source);
  bool nonfinite = false;
  for_each_chunk_of_block(table, [&](uint32_t chunk) {
    SumSquares squares{inverse};
    for_each_pack_in_chunk<kBlock>(table, chunk, squares);
    nonfinite |= squares.nonfinite;
    const SquareSum total = block_sum<kBlock>(squares.sum);
    if (threadIdx.x == 0) {
      sums[chunk] = total;
    }
  });
  raise_if_any(nonfinite, found_inf);
}

template <int kBlock>
__global__ void __launch_bounds__(kBlock)
    clip_factor_kernel(const SquareSum* sums, std::size_t count, InverseSource source,
                       double max_norm, const float* found_inf, ClipFactor* result) {
  SquareSum sum{};
#pragma unroll 4
  for (std::size_t i = threadIdx.x; i < count; i += kBlock) {
    sum.add(sums[i]);
  }
  const SquareSum total = block_sum<kBlock>(sum);
  if (threadIdx.x == 0) {
    const float inverse = load_inverse(source);
    *result = common::clip_factor(total, inverse, max_norm);
    if (*found_inf != 0.0f) {
      result->factor = 1.0;
    }
  }
}

/// Multiplies in place: doubles by the factor itself, all else by its float form.
struct ApplyFactor {
  double factor;
  common::FloatFactor in_float;

  template <typename T, int kCount>
  __device__ void operator()(Pack<T, kCount>* place, Pack<T, kCount> pack) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      T& item = pack.items[i];
      if constexpr (std::is_same_v<T, double>) {
        item *= factor;
      } else {
        item = multiplied(item, in_float);
      }
    }
    *place = pack;
  }
};

template <int kBlock, int kCapacity>
__global__ void __launch_bounds__(kBlock, kResidentBlocks<kBlock>)
    apply_factor_kernel(const __grid_constant__ KernelTable<kCapacity> table,
                        const ClipFactor* result) {
  const double factor = result->factor;
  if (factor == 1.0) {
    return;
  }
  ApplyFactor apply{factor, common::float_factor(factor)};
  for_each_chunk_of_block(
      table, [&](uint32_t chunk) { for_each_pack_in_chunk<kBlock>(table, chunk, apply); });
}

template <int kBlock>
void launch_grad_norm_with(const common::ChunkTable& table, InverseSource source, float* found_inf,
                           SquareSum* sums, cudaStream_t stream) {
  launch_over_table("grad_norm", &grad_norm_kernel<kBlock, kShortTable>,
                    &grad_norm_kernel<kBlock, kLongTable>, kBlock, stream, table, source, found_inf,
                    sums);
}

template <int kBlock>
void launch_clip_factor_with(const SquareSum* sums, std::size_t count, InverseSource source,
                             double max_norm, const float* found_inf, ClipFactor* result,
                             cudaStream_t stream) {
  launch("clip_factor", &clip_factor_kernel<kBlock>, 1, kBlock, stream, sums, count, source,
         max_norm, found_inf, result);
}

template <int kBlock>
void launch_apply_factor_with(const common::ChunkTable& table, const ClipFactor* result,
                              cudaStream_t stream) {
  launch_over_table("apply_factor", &apply_factor_kernel<kBlock, kShortTable>,
                    &apply_factor_kernel<kBlock, kLongTable>, kBlock, stream, table, result);
}

}  // namespace torchamp::cuda
