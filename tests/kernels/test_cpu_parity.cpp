#include <cmath>

#include "catch.h"
#include "gradients.h"
#include "ops/cpu/clip_norm.h"
#include "ops/cpu/unscale.h"
#include "ops/cuda/clip_norm.cuh"
#include "ops/cuda/unscale.cuh"

// The CUDA kernels against the CPU kernels that are chosen for this processor: the same bits in the
// gradients, the same flag, and norms that agree.

namespace {

using namespace torchamp::cuda;
namespace cpu = torchamp::cpu;

constexpr float kInverses[] = {0x1p-16f, 1.0f, 1.0f / 3.0f, 4.0f, 0x1p20f};

}  // namespace

TEST_CASE("CUDA and CPU kernels unscale alike", "[threads]") {
  std::mt19937 random(1);
  for (int round = 0; round < 160; ++round) {
    const reference::List list = reference::sample_list_of_kind(random, round % 8, 8);
    const float inverse = kInverses[round % 5];

    reference::List on_cpu = list;
    const auto table = table_of(on_cpu);
    const bool found = cpu::unscale_chunks(table, 0, table.num_chunks(), inverse);

    reference::List on_cuda = list;
    float found_inf = 0.0f;
    launch_unscale_with<32>(table_of(on_cuda), InverseSource::from_inverse(&inverse), &found_inf,
                            nullptr);
    CHECK(same(on_cuda, on_cpu));
    CHECK(found_inf == (found ? 1.0f : 0.0f));
  }
}

TEST_CASE("CUDA and CPU kernels find the same norms and flags", "[threads]") {
  std::mt19937 random(2);
  for (int round = 0; round < 80; ++round) {
    const reference::List list = reference::sample_list_of_kind(random, round % 8, 8);
    const float inverse = kInverses[round % 5];
    const auto table = table_of(list);
    std::vector<SquareSum> sums(table.num_chunks());
    const bool found = cpu::sum_squares(table, 0, table.num_chunks(), inverse, sums.data());
    const double norm = cpu::clip_factor(sums.data(), sums.size(), inverse, 1.0).norm;

    float found_inf = 0.0f;
    ClipFactor result{};
    const InverseSource source = InverseSource::from_inverse(&inverse);
    launch_grad_norm_with<32>(table, source, &found_inf, sums.data(), nullptr);
    launch_clip_factor_with<32>(sums.data(), sums.size(), source, 1.0, &found_inf, &result,
                                nullptr);
    CHECK(found_inf == (found ? 1.0f : 0.0f));
    if (std::isfinite(norm)) {
      CHECK(result.norm == Approx(norm).epsilon(4e-7).margin(0));
    } else {
      CHECK(std::isnan(result.norm) == std::isnan(norm));
      CHECK(std::isinf(result.norm) == std::isinf(norm));
    }
  }
}

TEST_CASE("CUDA and CPU kernels apply a factor alike", "[threads]") {
  constexpr double kFactors[] = {0.7, 0x1p-17, 1e-5 / 3, 1.0, 1e-40, 1e-50, 1e-70};
  std::mt19937 random(3);
  for (int round = 0; round < 70; ++round) {
    const reference::List list = reference::sample_list(random, 8, {1e-45, 3e38});
    const ClipFactor result{1.0, kFactors[round % 7]};

    reference::List on_cpu = list;
    const auto table = table_of(on_cpu);
    cpu::apply_factor(table, 0, table.num_chunks(), result.factor);

    reference::List on_cuda = list;
    launch_apply_factor_with<32>(table_of(on_cuda), &result, nullptr);
    CHECK(same(on_cuda, on_cpu));
  }
}
