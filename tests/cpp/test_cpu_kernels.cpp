// The CPU kernels below the operators: every instruction set that this processor has, against the
// element rule written out one by one. NaN equals NaN here, whatever its payload.

#include <ATen/Parallel.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <omp.h>
#include <torch/torch.h>
#include <torchamp/ops.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ops/common/chunk_table.h"
#include "ops/common/element.h"
#include "ops/cpu/clip_norm.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/unscale.h"
#include "ops/cpu/unscale_and_clip.h"
#include "ops/cpu/unscale_kernels.h"

using namespace torchamp;
using common::BFloat16;
using common::DType;
using common::Half;

namespace {

struct InstructionSet {
  const char* name;
  const cpu::UnscaleKernels& kernels;
};

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{{"baseline", cpu::kUnscaleBaseline}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    sets.push_back({"avx2", cpu::kUnscaleAvx2});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    sets.push_back({"avx512", cpu::kUnscaleAvx512});
  }
#endif
  return sets;
}

template <typename T>
struct Traits;
template <>
struct Traits<float> {
  using Bits = uint32_t;
  static constexpr DType kDType = DType::kFloat32;
};
template <>
struct Traits<double> {
  using Bits = uint64_t;
  static constexpr DType kDType = DType::kFloat64;
};
template <>
struct Traits<Half> {
  using Bits = uint16_t;
  static constexpr DType kDType = DType::kFloat16;
};
template <>
struct Traits<BFloat16> {
  using Bits = uint16_t;
  static constexpr DType kDType = DType::kBFloat16;
};

double value_of(float x) { return x; }
double value_of(double x) { return x; }
double value_of(Half x) { return common::to_float(x); }
double value_of(BFloat16 x) { return common::to_float(x); }

template <typename T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0 ||
         (std::isnan(value_of(a)) && std::isnan(value_of(b)));
}

/// Index of the first difference, -1 if there is none.
template <typename T>
int64_t difference(const T* a, const T* b, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) {
    if (!same(a[i], b[i])) {
      return i;
    }
  }
  return -1;
}

template <typename T>
bool multiply_one_by_one(T* data, int64_t numel, float factor) {
  bool nonfinite = false;
  for (int64_t i = 0; i < numel; ++i) {
    if (factor != 1.0f) {
      data[i] = common::multiplied(data[i], factor);
    }
    nonfinite |= common::is_nonfinite(data[i]);
  }
  return nonfinite;
}

/// Any bit pattern: infinities, NaN and subnormal numbers among them. `finite` leaves out what
/// makes the flag 1, so that the flag says something.
template <typename T>
std::vector<T> random_bits(std::mt19937_64& generator, int64_t numel, bool finite) {
  std::vector<T> data;
  while (static_cast<int64_t>(data.size()) < numel) {
    const T value = common::bit_cast<T>(static_cast<typename Traits<T>::Bits>(generator()));
    if (!finite || std::fabs(value_of(value)) < 1e3) {
      data.push_back(value);
    }
  }
  return data;
}

const std::vector<float>& factors() {
  static const std::vector<float> all{0x1p-16f,
                                      1.0f,
                                      -1.0f,
                                      0.1f,
                                      3.0f,
                                      0x1p20f,
                                      0.0f,
                                      -0.0f,
                                      0x1p-149f,
                                      0x1p-130f,
                                      std::numeric_limits<float>::max(),
                                      std::numeric_limits<float>::infinity(),
                                      common::bit_cast<float>(0x7fffffffu),
                                      common::bit_cast<float>(0xffffffffu),
                                      common::bit_cast<float>(0x7f800001u)};
  return all;
}

template <typename T>
void check_multiply(const InstructionSet& set, const std::vector<T>& input, float factor,
                    int64_t begin, int64_t end) {
  std::vector<T> result = input;
  std::vector<T> expected = input;
  const bool flag =
      set.kernels.multiply[Traits<T>::kDType](result.data() + begin, end - begin, factor);
  const bool expected_flag = multiply_one_by_one(expected.data() + begin, end - begin, factor);
  const int64_t differs =
      difference(result.data(), expected.data(), static_cast<int64_t>(input.size()));
  if (flag != expected_flag || differs >= 0) {
    CAPTURE(set.name, factor, begin, end, differs);
    CHECK(flag == expected_flag);
    CHECK(differs == -1);
  }
}

double exact_squares(const std::vector<double>& values) {
  long double sum = 0;
  for (const double value : values) {
    sum += static_cast<long double>(value) * value;
  }
  return static_cast<double>(sum);
}

}  // namespace

TEST_CASE("Every 16-bit number is multiplied as the element rule says", "[cpu_kernels]") {
  for (const InstructionSet& set : instruction_sets()) {
    for (const float factor : factors()) {
      std::vector<Half> halves;
      std::vector<BFloat16> bfloats;
      for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
        halves.push_back({static_cast<uint16_t>(bits)});
        bfloats.push_back({static_cast<uint16_t>(bits)});
      }
      check_multiply(set, halves, factor, 0, 0x10000);
      check_multiply(set, bfloats, factor, 0, 0x10000);
    }
  }
}

TEMPLATE_TEST_CASE("Every length and alignment, any bits", "[cpu_kernels]", float, double, Half,
                   BFloat16) {
  std::mt19937_64 generator(5);
  for (const InstructionSet& set : instruction_sets()) {
    for (int64_t begin = 0; begin < 17; ++begin) {
      for (int64_t length = 0; length < 150; ++length) {
        for (const bool finite : {false, true}) {
          const auto input = random_bits<TestType>(generator, begin + length + 3, finite);
          const float factor = factors()[generator() % factors().size()];
          check_multiply(set, input, factor, begin, begin + length);
        }
      }
    }
    for (const int64_t length : {1023, 1024, 1025, 16383, 16384, 16385, 100003}) {
      const auto input = random_bits<TestType>(generator, length, true);
      for (const float factor : factors()) {
        check_multiply(set, input, factor, 0, length);
      }
    }
  }
}

TEMPLATE_TEST_CASE("One infinity or NaN anywhere is found", "[cpu_kernels]", float, double, Half,
                   BFloat16) {
  std::mt19937_64 generator(6);
  using Bits = typename Traits<TestType>::Bits;
  const Bits infinity = static_cast<Bits>(sizeof(TestType) == 8            ? 0x7ff0000000000000u
                                          : sizeof(TestType) == 4          ? 0x7f800000u
                                          : std::is_same_v<TestType, Half> ? 0x7c00u
                                                                           : 0x7f80u);
  for (const InstructionSet& set : instruction_sets()) {
    for (const int64_t length : {1, 2, 7, 31, 33, 64, 100, 257}) {
      for (int64_t place = 0; place < length; ++place) {
        for (const int variant : {0, 1, 2}) {
          auto input = random_bits<TestType>(generator, length, true);
          const auto sign = static_cast<Bits>(Bits{1} << (sizeof(TestType) * 8 - 1));
          const Bits planted = variant == 0   ? infinity
                               : variant == 1 ? static_cast<Bits>(infinity | sign)
                                              : static_cast<Bits>(infinity + 1);
          input[static_cast<std::size_t>(place)] = common::bit_cast<TestType>(planted);
          const auto dtype = Traits<TestType>::kDType;
          CHECK(set.kernels.summarize[dtype](input.data(), length, 0.25f).nonfinite !=
                !set.kernels.summarize[dtype](input.data(), length, 0.25f).in_range);
          CHECK(set.kernels.multiply[dtype](input.data(), length, 1.0f));
          CHECK(set.kernels.multiply[dtype](input.data(), length, 0.25f));
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("Sums of squares have the same bits on every instruction set", "[cpu_kernels]",
                   float, double, Half, BFloat16) {
  std::mt19937_64 generator(7);
  const auto dtype = Traits<TestType>::kDType;
  for (int64_t length : {0, 1, 2, 31, 32, 33, 63, 64, 100, 1000, 4097, 16384}) {
    for (int64_t begin = 0; begin < 5; ++begin) {
      const auto input = random_bits<TestType>(generator, begin + length, true);
      std::vector<double> values;
      for (int64_t i = begin; i < begin + length; ++i) {
        values.push_back(value_of(input[static_cast<std::size_t>(i)]));
      }
      const double expected = exact_squares(values);
      const auto first = cpu::kUnscaleBaseline.summarize[dtype](input.data() + begin, length, 1.0f);
      CAPTURE(length, begin);
      for (const InstructionSet& set : instruction_sets()) {
        CAPTURE(set.name);
        const auto summary = set.kernels.summarize[dtype](input.data() + begin, length, 1.0f);
        CHECK(summary.in_range == first.in_range);
        CHECK(summary.nonfinite == first.nonfinite);
        CHECK(common::bit_cast<uint64_t>(summary.squares) ==
              common::bit_cast<uint64_t>(first.squares));
        if (summary.in_range) {
          // Float squares are added by four in float.
          CHECK(summary.squares ==
                Approx(expected).epsilon(dtype == DType::kFloat64 ? 1e-13 : 2e-7));
          CHECK_FALSE(summary.nonfinite);
        }
      }
    }
  }
}

TEST_CASE("Sums of squares are right at any magnitude", "[cpu_kernels]") {
  std::mt19937_64 generator(10);
  std::uniform_real_distribution<float> distribution(-1, 1);
  for (int exponent = -140; exponent <= 127; ++exponent) {
    std::vector<float> data;
    std::vector<double> values;
    for (int i = 0; i < 5000; ++i) {
      // Beside large numbers there are small ones, whose squares a float could not hold.
      const int smaller = i % 3 == 0 ? 0 : i % 3 == 1 ? 40 : 80;
      data.push_back(std::ldexp(distribution(generator), exponent - smaller));
      values.push_back(data.back());
    }
    const double expected = exact_squares(values);
    for (const InstructionSet& set : instruction_sets()) {
      CAPTURE(set.name, exponent);
      const auto summary = set.kernels.summarize.float32(data.data(), 5000, 1.0f);
      CHECK(summary.squares == Approx(expected).epsilon(2e-7));
      CHECK(common::bit_cast<uint64_t>(summary.squares) ==
            common::bit_cast<uint64_t>(
                cpu::kUnscaleBaseline.summarize.float32(data.data(), 5000, 1.0f).squares));
    }
  }
}

TEMPLATE_TEST_CASE("The flag of the norm is the flag of unscaling", "[cpu_kernels]", float, double,
                   Half, BFloat16) {
  std::mt19937_64 generator(8);
  for (int round = 0; round < 400; ++round) {
    const bool finite = round % 2 == 0;
    auto input =
        random_bits<TestType>(generator, 1 + static_cast<int64_t>(generator() % 40), finite);
    const float factor = factors()[generator() % factors().size()];
    common::ChunkTable table(1);
    table.add(input.data(), static_cast<int64_t>(input.size()), Traits<TestType>::kDType);
    cpu::SquareSum sum{};
    const bool flag = cpu::sum_squares(table, 0, 1, factor, &sum);
    CAPTURE(factor, input.size());
    CHECK(flag == multiply_one_by_one(input.data(), static_cast<int64_t>(input.size()), factor));
  }
}

namespace {

struct MixedList {
  std::vector<std::vector<char>> memory;
  common::ChunkTable table{200};

  explicit MixedList(uint64_t seed) {
    std::mt19937_64 generator(seed);
    const DType dtypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
    for (int i = 0; i < 60; ++i) {
      const DType dtype = dtypes[generator() % 4];
      const auto numel = static_cast<int64_t>(generator() % (i % 10 == 0 ? 70000 : 300));
      memory.emplace_back(static_cast<std::size_t>(numel + 1) * size_of(dtype));
      char* data = memory.back().data();
      std::uniform_real_distribution<float> distribution(-2, 2);
      for (int64_t k = 0; k < numel; ++k) {
        const float value = distribution(generator);
        switch (dtype) {
          case DType::kFloat32:
            reinterpret_cast<float*>(data)[k] = value;
            break;
          case DType::kFloat64:
            reinterpret_cast<double*>(data)[k] = value;
            break;
          case DType::kFloat16:
            reinterpret_cast<Half*>(data)[k] = common::to_half(value);
            break;
          default:
            reinterpret_cast<BFloat16*>(data)[k] = common::to_bfloat16(value);
        }
      }
      table.add(data, numel, dtype);
    }
  }
};

struct ThreadCount {
  int before = at::get_num_threads();
  explicit ThreadCount(int threads) { at::set_num_threads(threads); }
  ~ThreadCount() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("Results do not depend on the number of threads", "[cpu_kernels]") {
  for (const uint64_t seed : {1, 2, 3}) {
    MixedList one(seed);
    MixedList clipped_by_one(seed);
    double norm = 0;
    {
      const ThreadCount threads(1);
      cpu::in_parallel(one.table, [&](uint32_t first, uint32_t last) {
        return cpu::unscale_chunks(one.table, first, last, 0.37f);
      });
      norm = cpu::unscale_and_clip(clipped_by_one.table, 0.37f, 1.0, false).norm;
    }
    for (const int count : {2, 3, 5}) {
      const ThreadCount threads(count);
      MixedList several(seed);
      MixedList clipped(seed);
      cpu::in_parallel(several.table, [&](uint32_t first, uint32_t last) {
        return cpu::unscale_chunks(several.table, first, last, 0.37f);
      });
      CHECK(several.memory == one.memory);
      CHECK(cpu::unscale_and_clip(clipped.table, 0.37f, 1.0, false).norm == norm);
      CHECK(clipped.memory == clipped_by_one.memory);
    }
  }
}

TEST_CASE("Every chunk is worked on once, by two threads", "[cpu_kernels]") {
  const ThreadCount threads(2);
  MixedList list(4);
  std::vector<std::atomic<int>> visits(list.table.num_chunks());
  std::vector<std::atomic<int64_t>> elements(2);
  cpu::in_parallel(list.table, [&](uint32_t first, uint32_t last) {
    for (uint32_t chunk = first; chunk < last; ++chunk) {
      ++visits[chunk];
    }
    cpu::for_each_span(list.table, first, last, [&](const cpu::Span& span) {
      elements[static_cast<std::size_t>(omp_get_thread_num())] += span.numel;
    });
    return false;
  });
  for (const auto& count : visits) {
    CHECK(count == 1);
  }
  CHECK(elements[0] + elements[1] == list.table.num_elements());
  // Fails if the library was compiled without OpenMP: at::parallel_for is a plain loop then.
  CHECK(elements[0] > list.table.num_elements() / 3);
  CHECK(elements[1] > list.table.num_elements() / 3);
}

TEST_CASE("An overflow in any thread's part is reported", "[cpu_kernels]") {
  const ThreadCount threads(2);
  std::vector<float> data(200'000, 1.0f);
  common::ChunkTable table(1);
  table.add(data.data(), static_cast<int64_t>(data.size()), DType::kFloat32);
  for (const std::size_t place : {std::size_t{0}, data.size() / 2, data.size() - 1}) {
    const auto unscale = [&](uint32_t first, uint32_t last) {
      return cpu::unscale_chunks(table, first, last, 0.5f);
    };
    CHECK_FALSE(cpu::in_parallel(table, unscale));
    std::fill(data.begin(), data.end(), 1.0f);
    data[place] = std::numeric_limits<float>::infinity();
    CHECK(cpu::in_parallel(table, unscale));
    std::fill(data.begin(), data.end(), 1.0f);
  }
}

TEST_CASE("unscale_and_clip keeps its promises at the edges", "[cpu_kernels]") {
  const auto run = [](auto& data, float inverse, double max_norm, bool found_inf = false) {
    using T = typename std::decay_t<decltype(data)>::value_type;
    common::ChunkTable table(1);
    table.add(data.data(), static_cast<int64_t>(data.size()), Traits<T>::kDType);
    return cpu::unscale_and_clip(table, inverse, max_norm, found_inf);
  };
  SECTION("clips to max_norm") {
    std::vector<float> data{6, 8};
    const auto result = run(data, 0.5f, 1.0);
    CHECK(result.norm == 5.0);
    CHECK_FALSE(result.found_inf);
    CHECK(data[0] == Approx(0.6).epsilon(1e-6));
    CHECK(data[1] == Approx(0.8).epsilon(1e-6));
  }
  SECTION("only unscales below max_norm") {
    std::vector<float> data{6, 8};
    CHECK(run(data, 0.5f, 100.0).norm == 5.0);
    CHECK(data == std::vector<float>{3, 4});
  }
  SECTION("leaves gradients alone after an overflow") {
    std::vector<float> data{6, std::numeric_limits<float>::infinity()};
    const std::vector<float> before = data;
    CHECK(run(data, 0.5f, 1.0).found_inf);
    CHECK(data == before);
    data = {6, 8};
    CHECK(run(data, 0.5f, 1.0, /*found_inf=*/true).found_inf);
    CHECK(data == std::vector<float>{6, 8});
  }
  SECTION("squares of large and small floats") {
    std::vector<float> data(1000, 3e38f);
    CHECK(run(data, 1.0f, 1.0).norm == Approx(3e38 * std::sqrt(1000.0)).epsilon(1e-7));
    CHECK(data[0] == Approx(1 / std::sqrt(1000.0)).epsilon(1e-6));
    data.assign(1000, 1e-44f);
    CHECK(run(data, 1.0f, 1.0).norm ==
          Approx(static_cast<double>(1e-44f) * std::sqrt(1000.0)).epsilon(1e-7));
  }
  SECTION("squares of large and small doubles") {
    std::vector<double> data(1000, 1e300);
    CHECK(run(data, 1.0f, 1.0).norm == Approx(1e300 * std::sqrt(1000.0)).epsilon(1e-12));
    CHECK(data[999] == Approx(1 / std::sqrt(1000.0)).epsilon(1e-12));
    data.assign(1000, 1e-300);
    CHECK(run(data, 1.0f, 1.0).norm == Approx(1e-300 * std::sqrt(1000.0)).epsilon(1e-12));
    data.assign(40'000, 1.0);
    data[20'000] = 1e300;
    data[39'999] = 1e-300;
    CHECK(run(data, 1.0f, 1e301).norm == Approx(1e300).epsilon(1e-12));
  }
  SECTION("an empty list has norm 0") {
    const common::ChunkTable table(0);
    CHECK(cpu::unscale_and_clip(table, 0.5f, 1.0, false).norm == 0.0);
  }
}

TEST_CASE("Bit-equal to PyTorch's operator, whatever the bits", "[cpu_kernels]") {
  std::mt19937_64 generator(9);
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kHalf, torch::kBFloat16}) {
    for (const int threads : {1, 2}) {
      const ThreadCount count(threads);
      for (const float inverse : {0x1p-16f, 0.3f, 1.0f, 0x1p-140f}) {
        std::vector<at::Tensor> ours;
        std::vector<at::Tensor> theirs;
        for (const int64_t numel : {1, 3, 15, 16, 17, 63, 1000, 70'001}) {
          const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
          at::Tensor bits = torch::empty({bytes}, torch::kByte);
          for (int64_t i = 0; i < bytes; ++i) {
            bits.data_ptr<uint8_t>()[i] = static_cast<uint8_t>(generator());
          }
          ours.push_back(bits.view(dtype));
          theirs.push_back(bits.clone().view(dtype));
        }
        at::Tensor found = torch::zeros({});
        at::Tensor their_found = torch::zeros({});
        unscale_(ours, found, torch::tensor(inverse), /*scale_is_inverse=*/true);
        at::_amp_foreach_non_finite_check_and_unscale_(theirs, their_found, torch::tensor(inverse));
        CAPTURE(c10::toString(dtype), threads, inverse);
        for (std::size_t i = 0; i < ours.size(); ++i) {
          const at::Tensor nan = ours[i].isnan();
          CHECK(nan.equal(theirs[i].isnan()));
          const auto integers = c10::elementSize(dtype) == 8   ? torch::kLong
                                : c10::elementSize(dtype) == 4 ? torch::kInt
                                                               : torch::kShort;
          CHECK(ours[i].view(integers).masked_fill(nan, 0).equal(
              theirs[i].view(integers).masked_fill(nan, 0)));
        }
        CHECK(found.item<float>() == their_found.item<float>());
      }
    }
  }
}
