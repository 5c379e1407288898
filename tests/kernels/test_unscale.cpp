#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <string>

#include "catch.h"
#include "gradients.h"
#include "ops/cuda/unscale.cuh"

// The unscale kernel in threads, against the scalar reference: equal to the last bit.

namespace {

using namespace torchamp::cuda;
using reference::DType;
using reference::Gradient;
using reference::List;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Outcome {
  List list;
  float found_inf;
};

template <int kBlock>
Outcome run(const List& list, InverseSource source, float found_inf = 0.0f) {
  Outcome outcome{list, found_inf};
  launch_unscale_with<kBlock>(table_of(outcome.list), source, &outcome.found_inf, nullptr);
  return outcome;
}

template <int kBlock>
void check_list(const List& list, float scale) {
  const float inverse = 1.0f / scale;
  const auto expected = reference::unscaled(list, inverse);
  const Outcome by_scale = run<kBlock>(list, InverseSource::from_scale(&scale));
  CHECK(by_scale.found_inf == (expected.found_inf ? 1.0f : 0.0f));
  CHECK(same(by_scale.list, expected.list));
}

constexpr float kScales[] = {65536.0f, 1.0f, 3.0f, 0.25f, 0x1p-20f};

}  // namespace

TEMPLATE_TEST_CASE_SIG("sampled lists are unscaled as by the reference", "[unscale][threads]",
                       ((int kBlock, int kRounds), kBlock, kRounds), (32, 280), (64, 80),
                       (128, 24)) {
  std::mt19937 random(kBlock);
  for (int round = 0; round < kRounds; ++round) {
    check_list<kBlock>(reference::sample_list_of_kind(random, round % 8, 8), kScales[round % 5]);
  }
}

TEST_CASE("the shipped block size unscales as the reference", "[unscale][threads]") {
  std::mt19937 random(1);
  for (int round = 0; round < 4; ++round) {
    const List list = reference::sample_list_of_kind(random, round, 6);
    const float scale = 8.0f;
    List result = list;
    float found_inf = 0.0f;
    launch_unscale(table_of(result), InverseSource::from_scale(&scale), &found_inf, nullptr);
    const auto expected = reference::unscaled(list, 0.125f);
    CHECK(same(result, expected.list));
    CHECK(found_inf == (expected.found_inf ? 1.0f : 0.0f));
  }
}

TEST_CASE("a non-finite element is found wherever it stands", "[unscale][threads]") {
  std::mt19937 random(3);
  for (const DType dtype : reference::kAllTypes) {
    const auto per_pack = static_cast<int64_t>(16 / torchamp::common::size_of(dtype));
    const int64_t numel = 4 * per_pack + 3;
    for (const int64_t offset : {int64_t{0}, int64_t{1}}) {
      List list;
      list.emplace_back(dtype, 7);
      list.emplace_back(dtype, numel, offset);
      for (Gradient& gradient : list) {
        fill(gradient, random, {});
      }
      for (const int64_t place : {int64_t{0}, per_pack - 1, per_pack, numel - 4, numel - 1}) {
        List planted = list;
        planted[1].set(place, (place & 1) != 0 ? kNaN : -kInfinity);
        check_list<32>(planted, 4.0f);
      }
    }
  }
}

TEST_CASE("a finite element that unscales to infinity is an overflow", "[unscale][threads]") {
  const struct {
    DType dtype;
    double value;
  } kCases[] = {{DType::kFloat32, 3e38},
                {DType::kFloat64, 1e308},
                {DType::kFloat16, 60000.0},
                {DType::kBFloat16, 3e38}};
  for (const auto& [dtype, value] : kCases) {
    List list;
    list.emplace_back(dtype, 20);
    reference::Gradient& gradient = list.back();
    for (int64_t i = 0; i < 20; ++i) {
      gradient.set(i, 1.0);
    }
    gradient.set(17, value);
    const float scale = 0.25f;
    CHECK(run<32>(list, InverseSource::from_scale(&scale)).found_inf == 1.0f);
    CHECK(run<32>(list, InverseSource::one()).found_inf == 0.0f);
  }
}

TEST_CASE("the flag is only ever raised", "[unscale][threads]") {
  std::mt19937 random(4);
  const List list = reference::sample_list(random, 4);
  const float scale = 2.0f;
  CHECK(run<32>(list, InverseSource::from_scale(&scale), 1.0f).found_inf == 1.0f);
  CHECK(run<32>(list, InverseSource::from_scale(&scale), 0.0f).found_inf == 0.0f);
}

TEST_CASE("a given inverse is used as it is", "[unscale][threads]") {
  std::mt19937 random(5);
  const List list = reference::sample_list(random, 6);
  for (const float inverse : {0.1f, 1.0f / 3.0f, 0.0f, kInfinity, kNaN}) {
    const auto expected = reference::unscaled(list, inverse);
    const Outcome outcome = run<32>(list, InverseSource::from_inverse(&inverse));
    CHECK(same(outcome.list, expected.list));
    CHECK(outcome.found_inf == (expected.found_inf ? 1.0f : 0.0f));
  }
}

TEST_CASE("an inverse of 1 writes nothing", "[unscale][threads]") {
  constexpr std::size_t kBytes = 1 << 17;
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);  // a write would trap
  REQUIRE(memory != MAP_FAILED);
  const float scale = 1.0f;
  for (const DType dtype : reference::kAllTypes) {
    const auto size = torchamp::common::size_of(dtype);
    torchamp::common::ChunkTable table(1);
    (void)table.add(static_cast<std::byte*>(memory) + size, static_cast<int64_t>(kBytes / size) - 1,
                    dtype);
    float found_inf = 0.0f;
    launch_unscale_with<32>(table, InverseSource::from_scale(&scale), &found_inf, nullptr);
    launch_unscale_with<32>(table, InverseSource::one(), &found_inf, nullptr);
    CHECK(found_inf == 0.0f);
  }
  munmap(memory, kBytes);
}

TEST_CASE("long lists are cut into as many launches as predicted", "[unscale][threads]") {
  std::mt19937 random(6);
  for (const int tensors : {0, 1, kShortTable, kShortTable + 1, kLongTable, kLongTable + 1, 3000}) {
    List list;
    for (int i = 0; i < tensors; ++i) {
      list.emplace_back(reference::kAllTypes[i % 4], 1 + i % 11, i % 2);
      fill(list.back(), random, {});
    }
    if (tensors > 0) {
      list.back().set(list.back().numel() - 1, kNaN);  // the very last element of all
    }
    const float scale = 4.0f;
    host_cuda::device().launches = 0;
    const Outcome outcome = run<32>(list, InverseSource::from_scale(&scale));
    CHECK(host_cuda::device().launches == launches_for(table_of(list)));
    CHECK(outcome.found_inf == (tensors > 0 ? 1.0f : 0.0f));
    CHECK(same(outcome.list, reference::unscaled(list, 0.25f).list));
  }
}

TEST_CASE("the grid fills the device, and no more", "[unscale][threads]") {
  const host_cuda::Device before = host_cuda::device();
  List list;
  list.emplace_back(DType::kFloat16, 5 * torchamp::common::kChunkSize);
  std::mt19937 random(7);
  fill(list.back(), random, {});
  for (const unsigned processors : {1u, 2u, 100u}) {
    host_cuda::device().multiprocessors = processors;
    host_cuda::device().blocks_per_multiprocessor = 2;
    const float scale = 4.0f;
    const Outcome outcome = run<32>(list, InverseSource::from_scale(&scale));
    CHECK(host_cuda::device().last_grid == std::min(5u, 2 * processors));
    CHECK(same(outcome.list, reference::unscaled(list, 0.25f).list));
  }
  host_cuda::device() = before;
}

TEST_CASE("a failing launch throws and names the kernel", "[unscale]") {
  const host_cuda::Device before = host_cuda::device();
  host_cuda::device().launch_error = cudaErrorInvalidConfiguration;
  List list;
  list.emplace_back(DType::kFloat32, 3);
  std::string message;
  try {
    (void)run<32>(list, InverseSource::one());
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  CHECK(cudaGetLastError() == cudaSuccess);  // which is for others to find theirs
  host_cuda::device() = before;
  CHECK(message == "torchamp: unscale: invalid configuration argument");
}
