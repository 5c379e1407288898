#include <cmath>
#include <cstring>
#include <limits>

#include "catch.h"
#include "gradients.h"
#include "ops/cuda/clip_norm.cuh"

// Unscale + norm + clip in threads: the norm against long double, the factor against the formula,
// the gradients to the last bit.

namespace {

using namespace torchamp::cuda;
using reference::DType;
using reference::Filling;
using reference::Gradient;
using reference::List;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Outcome {
  List list;
  float found_inf;
  ClipFactor result;
  std::vector<SquareSum> sums;
};

template <int kBlock = 32>
Outcome clip(const List& list, float scale, double max_norm, float found_inf = 0.0f) {
  Outcome outcome{list, found_inf, {-1.0, -1.0}, {}};
  const auto table = table_of(outcome.list);
  const InverseSource source = InverseSource::from_scale(&scale);
  outcome.sums.resize(table.num_chunks());
  launch_grad_norm_with<kBlock>(table, source, &outcome.found_inf, outcome.sums.data(), nullptr);
  launch_clip_factor_with<kBlock>(outcome.sums.data(), outcome.sums.size(), source, max_norm,
                                  &outcome.found_inf, &outcome.result, nullptr);
  launch_apply_factor_with<kBlock>(table, &outcome.result, nullptr);
  return outcome;
}

double expected_factor(double norm, double inverse, double max_norm) {
  return inverse * std::min(1.0, max_norm / (norm + 1e-6));
}

/// One element times the factor. A float is multiplied in double here, by the factor rounded to as
/// many digits as float has: the product is exact before it is rounded.
double multiplied(DType dtype, double value, double factor) {
  if (dtype == DType::kFloat64) {
    return value * factor;
  }
  int exponent = 0;
  const auto digits = static_cast<float>(std::frexp(factor, &exponent));
  const auto product = static_cast<float>(value * std::ldexp(double{digits}, exponent));
  return reference::multiplied(dtype, product, 1.0f);
}

List multiplied(const List& list, double factor) {
  List result = list;
  for (Gradient& gradient : result) {
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      gradient.set(i, multiplied(gradient.dtype(), gradient.get(i), factor));
    }
  }
  return result;
}

bool all_finite_and_some_nonzero(const List& list) {
  bool nonzero = false;
  for (const Gradient& gradient : list) {
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      if (!std::isfinite(gradient.get(i))) {
        return false;
      }
      nonzero |= gradient.get(i) != 0.0;
    }
  }
  return nonzero;
}

List list_of(DType dtype, const std::vector<double>& values) {
  List list;
  list.emplace_back(dtype, static_cast<int64_t>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    list.back().set(static_cast<int64_t>(i), values[i]);
  }
  return list;
}

template <int kBlock>
void check_list(const List& list, float scale, double max_norm) {
  const float inverse = 1.0f / scale;
  const bool overflow = reference::unscaled(list, inverse).found_inf;
  const Outcome outcome = clip<kBlock>(list, scale, max_norm);
  CHECK(outcome.found_inf == (overflow ? 1.0f : 0.0f));
  if (overflow) {
    CHECK(same(outcome.list, list));
    return;
  }
  const auto norm = static_cast<double>(reference::norm(list, inverse));
  CHECK(outcome.result.norm == Approx(norm).epsilon(2e-7).margin(0));
  const double factor = expected_factor(outcome.result.norm, inverse, max_norm);
  CHECK(outcome.result.factor == factor);
  CHECK(same(outcome.list, multiplied(list, factor)));
}

}  // namespace

TEMPLATE_TEST_CASE_SIG("sampled lists are clipped as by the reference", "[clip][threads]",
                       ((int kBlock, int kRounds), kBlock, kRounds), (32, 144), (64, 48),
                       (128, 24)) {
  std::mt19937 random(kBlock);
  constexpr float kScales[] = {65536.0f, 1.0f, 3.0f, 0.25f};
  constexpr double kMaxNorms[] = {1.0, 1e9, 1e-3};
  constexpr double kPlanted[] = {kNaN, kInfinity, -kInfinity, 3e38};
  for (int round = 0; round < kRounds; ++round) {
    List list = reference::sample_list(random, 8);
    if (round % 3 == 2) {
      plant(list, random, kPlanted[round / 3 % 4]);
    }
    check_list<kBlock>(list, kScales[round % 4], kMaxNorms[round % 3]);
  }
}

TEST_CASE("the shipped block sizes clip as the reference", "[clip][threads]") {
  std::mt19937 random(1);
  const List list = reference::sample_list(random, 6);
  List result = list;
  const auto table = table_of(result);
  const float inverse = 0.125f;
  const InverseSource source = InverseSource::from_inverse(&inverse);
  float found_inf = 0.0f;
  auto* const sums = static_cast<SquareSum*>(std::malloc(square_sum_bytes(table)));
  ClipFactor clipped;
  launch_grad_norm(table, source, &found_inf, sums, nullptr);
  launch_clip_factor(sums, table.num_chunks(), source, 2.0, &found_inf, &clipped, nullptr);
  launch_apply_factor(table, &clipped, nullptr);
  std::free(sums);
  CHECK(found_inf == 0.0f);
  CHECK(clipped.norm ==
        Approx(static_cast<double>(reference::norm(list, inverse))).epsilon(2e-7).margin(0));
  CHECK(same(result, multiplied(list, expected_factor(clipped.norm, inverse, 2.0))));
}

TEST_CASE("the norm is right over the whole range of every type", "[clip][threads]") {
  const struct {
    DType dtype;
    Filling filling;
  } kCases[] = {
      {DType::kFloat32, {1e-45, 1e-38}},   {DType::kFloat32, {1e-30, 1e-20}},
      {DType::kFloat32, {1e-40, 3e38}},    {DType::kFloat32, {1e18, 3e38}},
      {DType::kBFloat16, {1e-40, 1e-30}},  {DType::kBFloat16, {1e-40, 3e38}},
      {DType::kFloat16, {6e-8, 6e4}},      {DType::kFloat64, {1e-323, 1e-310}},
      {DType::kFloat64, {1e-310, 1e-300}}, {DType::kFloat64, {1e-170, 1e-150}},
      {DType::kFloat64, {1e-320, 1e308}},  {DType::kFloat64, {1e140, 1e160}},
      {DType::kFloat64, {1e150, 1e300}},   {DType::kFloat64, {1e300, 1e308}},
  };
  std::mt19937 random(2);
  for (const auto& [dtype, filling] : kCases) {
    for (const int64_t numel : {int64_t{1}, int64_t{100}, torchamp::common::kChunkSize + 9}) {
      List list;
      list.emplace_back(dtype, numel, 1);
      fill(list.back(), random, filling);
      const Outcome outcome = clip(list, 1.0f, kInfinity);
      const long double norm = reference::norm(list, 1.0f);
      if (norm < std::numeric_limits<double>::max()) {
        CHECK(outcome.result.norm ==
              Approx(static_cast<double>(norm)).epsilon(2e-7).margin(5e-324));
      } else {
        CHECK(std::isinf(outcome.result.norm));
      }
      CHECK(outcome.found_inf == 0.0f);
    }
  }
}

TEST_CASE("zeros have norm 0 and stay zeros", "[clip][threads]") {
  for (const DType dtype : reference::kAllTypes) {
    const Outcome outcome = clip(list_of(dtype, {0.0, -0.0, 0.0, 0.0, 0.0}), 4.0f, 1.0);
    CHECK(outcome.result.norm == 0.0);
    CHECK(outcome.result.factor == 0.25);
  }
}

TEST_CASE("no chunks at all: norm 0", "[clip][threads]") {
  const Outcome outcome = clip({}, 4.0f, 1.0);
  CHECK(outcome.result.norm == 0.0);
  CHECK(outcome.found_inf == 0.0f);
}

TEST_CASE("a finite list does not become zeros because its squares overflow", "[clip][threads]") {
  const struct {
    DType dtype;
    double value;
  } kCases[] = {{DType::kFloat32, 3e38},
                {DType::kBFloat16, 3e38},
                {DType::kFloat16, 60000.0},
                {DType::kFloat64, 1e200},
                {DType::kFloat64, 1.7e308}};
  for (const auto& [dtype, value] : kCases) {
    const List list = list_of(dtype, std::vector<double>(2000, value));
    for (const float scale : {1.0f, 65536.0f}) {
      const Outcome outcome = clip(list, scale, 1.0);
      CHECK(outcome.found_inf == 0.0f);
      CHECK(all_finite_and_some_nonzero(outcome.list));
      const long double norm = reference::norm(outcome.list, 1.0f);
      const double tolerance = dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? 4e-3 : 1e-6;
      CHECK(static_cast<double>(norm) == Approx(1.0).epsilon(tolerance));
    }
  }
}

TEST_CASE("a factor below the range of float is applied without loss", "[clip][threads]") {
  std::mt19937 random(5);
  for (const double factor : {0x1.fffffep-127, 0x1.8p-140, 0x1.23456789p-170, 0x1p-190,
                              0x1.fffffffp-191, 0x1.5555555p-230, 0x1p-252, 0x1.7p-260, 0.0}) {
    List list;
    for (const DType dtype : reference::kAllTypes) {
      list.emplace_back(dtype, 600);
      fill(list.back(), random, {1e-45, 3e38});
    }
    const List expected = multiplied(list, factor);
    const ClipFactor result{1.0, factor};
    launch_apply_factor_with<32>(table_of(list), &result, nullptr);
    CHECK(same(list, expected));
  }
}

TEST_CASE("after an overflow the gradients stay as they were", "[clip][threads]") {
  for (const double value : {kNaN, kInfinity}) {
    const List list = list_of(DType::kFloat32, {1.0, 2.0, value, 4.0, 5.0});
    const Outcome outcome = clip(list, 4.0f, 0.1);
    CHECK(outcome.found_inf == 1.0f);
    CHECK(outcome.result.factor == 1.0);
    CHECK_FALSE(std::isfinite(outcome.result.norm));
    CHECK(std::isnan(outcome.result.norm) == std::isnan(value));
    CHECK(same(outcome.list, list));
  }
  // Also after one that was found before.
  const List list = list_of(DType::kFloat16, {1.0, 2.0, 4.0});
  const Outcome outcome = clip(list, 4.0f, 0.1, 1.0f);
  CHECK(same(outcome.list, list));
  CHECK(outcome.result.norm == Approx(std::sqrt(21.0) / 4));
}

TEST_CASE("a NaN or infinity in one chunk of many reaches the norm", "[clip][threads]") {
  for (const DType dtype : reference::kAllTypes) {
    List list;
    list.emplace_back(dtype, 3 * torchamp::common::kChunkSize, 1);
    std::mt19937 random(3);
    fill(list.back(), random, {1e-3, 1e3});
    list.back().set(torchamp::common::kChunkSize + 77, kNaN);
    CHECK(std::isnan(clip(list, 2.0f, 1.0).result.norm));
    list.back().set(torchamp::common::kChunkSize + 77, -kInfinity);
    CHECK(clip(list, 2.0f, 1.0).result.norm == kInfinity);
  }
}

TEST_CASE("unusual largest norms do what the formula says", "[clip][threads]") {
  const List list = list_of(DType::kFloat32, {3.0, 4.0});
  CHECK(clip(list, 1.0f, kInfinity).result.factor == 1.0);
  CHECK(clip(list, 1.0f, 0.0).result.factor == 0.0);
  CHECK(std::isnan(clip(list, 1.0f, kNaN).result.factor));
  CHECK(clip(list, 1.0f, 5.0).result.factor == 5.0 / (5.0 + 1e-6));
}

TEST_CASE("the same bits whatever the grid", "[clip][threads]") {
  const host_cuda::Device before = host_cuda::device();
  std::mt19937 random(4);
  List list = reference::sample_list(random, 12);
  list.emplace_back(DType::kFloat64, 5 * torchamp::common::kChunkSize + 3, 1);
  fill(list.back(), random, {1e-320, 1e300});
  std::vector<Outcome> outcomes;
  for (const unsigned processors : {1u, 3u, 50u}) {
    host_cuda::device().multiprocessors = processors;
    host_cuda::device().blocks_per_multiprocessor = 1;
    host_cuda::device().concurrent_blocks = processors == 3u ? 3 : 2;
    outcomes.push_back(clip(list, 3.0f, 1.0));
  }
  host_cuda::device() = before;
  for (const Outcome& outcome : outcomes) {
    CHECK(std::memcmp(&outcome.result, &outcomes[0].result, sizeof(ClipFactor)) == 0);
    CHECK(std::memcmp(outcome.sums.data(), outcomes[0].sums.data(),
                      outcome.sums.size() * sizeof(SquareSum)) == 0);
  }
}

TEST_CASE("each pass takes as many launches as predicted", "[clip][threads]") {
  List list;
  for (int i = 0; i < kLongTable + 5; ++i) {
    list.emplace_back(reference::kAllTypes[i % 4], 1 + i % 3);
    list.back().set(0, 1.0);
    list.back().set(list.back().numel() - 1, 2.0);
    list.back().set(list.back().numel() / 2, 3.0);
  }
  host_cuda::device().launches = 0;
  const Outcome outcome = clip(list, 2.0f, 1.0);
  CHECK(host_cuda::device().launches == 2 * launches_for(table_of(list)) + 1);
  CHECK(outcome.result.norm ==
        Approx(static_cast<double>(reference::norm(list, 0.5f))).epsilon(2e-7));
}
