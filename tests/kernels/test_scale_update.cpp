#include <cstdint>
#include <limits>
#include <vector>

#include "catch.h"
#include "ops/common/scale_update.h"
#include "ops/cuda/update_scale.cuh"

// The scale-update rule against a table, and the kernel that applies it.

namespace {

using torchamp::common::ScaleState;
using torchamp::common::ScaleUpdate;

struct Row {
  ScaleState before;
  bool overflow;
  ScaleUpdate rule;
  ScaleState after;
};

constexpr ScaleUpdate kUsual{2.0, 0.5, 3};
constexpr float kLargest = std::numeric_limits<float>::max();

const std::vector<Row> kRows{
    {{8.0f, 0}, false, kUsual, {8.0f, 1}},
    {{8.0f, 1}, false, kUsual, {8.0f, 2}},
    {{8.0f, 2}, false, kUsual, {16.0f, 0}},
    {{8.0f, 0}, true, kUsual, {4.0f, 0}},
    {{8.0f, 2}, true, kUsual, {4.0f, 0}},
    {{8.0f, 7}, false, kUsual, {16.0f, 0}},         // the interval was lowered: grow now
    {{8.0f, 0}, false, {2.0, 0.5, 1}, {16.0f, 0}},  // every time
    {{0x1p127f, 2}, false, kUsual, {0x1p127f, 0}},  // growth would be infinite: left out
    {{kLargest, 2}, false, {1.0 + 1e-12, 0.5, 3}, {kLargest, 0}},
    {{0x1p-149f, 0}, true, kUsual, {0.0f, 0}},  // as PyTorch: half of the smallest is 0
    {{3.0f, 2}, false, {1.1, 0.5, 3}, {static_cast<float>(3.0 * 1.1), 0}},  // rounded once
    {{3.0f, 2}, true, {1.1, 0.7, 3}, {static_cast<float>(3.0 * 0.7), 0}},
    {{8.0f, 5}, false, {2.0, 0.5, 0}, {8.0f, 6}},  // as PyTorch: never
    {{8.0f, 5}, false, {2.0, 0.5, -3}, {8.0f, 6}},
    {{8.0f, INT32_MAX}, false, {2.0, 0.5, int64_t{1} << 40}, {8.0f, INT32_MAX}},
    {{8.0f, INT32_MAX - 1}, false, {2.0, 0.5, int64_t{1} << 40}, {8.0f, INT32_MAX}},
};

void check_same(const ScaleState& got, const ScaleState& expected) {
  CHECK(got.scale == expected.scale);
  CHECK(got.growth_tracker == expected.growth_tracker);
}

template <int kBlock>
ScaleState updated_by_kernel(const Row& row, const std::vector<float>& flags) {
  std::vector<const float*> addresses;
  for (const float& flag : flags) {
    addresses.push_back(&flag);
  }
  ScaleState state = row.before;
  torchamp::cuda::launch_update_scale_with<kBlock>(
      &state.scale, &state.growth_tracker, addresses.data(), static_cast<int>(addresses.size()),
      row.rule, nullptr);
  return state;
}

}  // namespace

TEST_CASE("the rule follows the table", "[update]") {
  for (const Row& row : kRows) {
    check_same(torchamp::common::updated(row.before, row.overflow, row.rule), row.after);
  }
}

TEST_CASE("the update kernel follows the table", "[update][threads]") {
  for (const Row& row : kRows) {
    check_same(updated_by_kernel<32>(row, {row.overflow ? 1.0f : 0.0f}), row.after);
  }
}

TEST_CASE("one flag among many is enough, wherever it stands", "[update][threads]") {
  const Row clean{{8.0f, 0}, false, kUsual, {8.0f, 1}};
  for (const std::size_t count : {0u, 1u, 2u, 31u, 32u, 33u, 64u, 65u, 499u, 500u}) {
    std::vector<float> flags(count, 0.0f);
    check_same(updated_by_kernel<32>(clean, flags), {8.0f, 1});
    check_same(updated_by_kernel<64>(clean, flags), {8.0f, 1});
    for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
      if (place < count) {
        std::vector<float> found = flags;
        found[place] = 1.0f;
        check_same(updated_by_kernel<32>(clean, found), {4.0f, 0});
        check_same(updated_by_kernel<64>(clean, found), {4.0f, 0});
      }
    }
  }
}

TEST_CASE("a flag that is NaN, negative or 2 counts, minus zero does not", "[update][threads]") {
  const Row clean{{8.0f, 0}, false, kUsual, {8.0f, 1}};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float flag : {nan, -1.0f, 2.0f, 0x1p-149f}) {
    check_same(updated_by_kernel<32>(clean, {0.0f, flag}), {4.0f, 0});
  }
  check_same(updated_by_kernel<32>(clean, {0.0f, -0.0f}), {8.0f, 1});
}

TEST_CASE("the update is one launch, and says when there are too many flags", "[update][threads]") {
  float scale = 8.0f;
  int32_t tracker = 0;
  const float flag = 0.0f;
  std::vector<const float*> flags(torchamp::cuda::kMaxFlags + 1, &flag);
  host_cuda::device().launches = 0;
  torchamp::cuda::launch_update_scale(&scale, &tracker, flags.data(), torchamp::cuda::kMaxFlags,
                                      kUsual, nullptr);
  CHECK(host_cuda::device().launches == 1);
  CHECK_THROWS_AS(
      torchamp::cuda::launch_update_scale(&scale, &tracker, flags.data(),
                                          torchamp::cuda::kMaxFlags + 1, kUsual, nullptr),
      std::length_error);
  CHECK(host_cuda::device().launches == 1);
  CHECK(tracker == 1);
}
