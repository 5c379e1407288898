#include "pass.h"

#include <omp.h>

#include <algorithm>

namespace torchamp::bench {

namespace {

struct Share {
  int64_t begin;
  int64_t end;
};

Share share_of(int64_t numel) {
  const int64_t threads = omp_get_num_threads();
  const int64_t thread = omp_get_thread_num();
  return {numel * thread / threads, numel * (thread + 1) / threads};
}

}  // namespace

void pass_scale(float* data, int64_t numel, float factor, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const auto [begin, end] = share_of(numel);
    for (int64_t i = begin; i < end; ++i) {
      data[i] *= factor;
    }
  }
}

double pass_sum_squares(const float* data, int64_t numel, int threads) {
  double total = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : total)
  {
    const auto [begin, end] = share_of(numel);
    for (int64_t block = begin; block < end; block += 4096) {
      const int64_t block_end = std::min(end, block + 4096);
      float sum = 0;
      for (int64_t i = block; i < block_end; ++i) {
        sum += data[i] * data[i];
      }
      total += sum;
    }
  }
  return total;
}

}  // namespace torchamp::bench
