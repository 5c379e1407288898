#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>
#include <torchamp/ops.h>

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "catch.h"
#include "devices.h"

namespace {

using on_device::full;
using on_device::ones;
using on_device::randn;
using on_device::tensor;
using on_device::zeros;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

torch::Tensor scalar(float value) { return full({}, value); }

/// Unscales and returns whether the flag was set.
bool unscale(at::TensorList grads, float scale) {
  const auto found_inf = scalar(0);
  torchamp::unscale_(grads, found_inf, scalar(scale));
  const auto flag = found_inf.item<float>();
  CHECK((flag == 0.0f || flag == 1.0f));
  return flag == 1.0f;
}

/// What the operator must leave in `grad`: the product in float (double), rounded once.
torch::Tensor reference(const torch::Tensor& grad, float scale) {
  const float inverse = 1.0f / scale;
  switch (grad.scalar_type()) {
    case at::kDouble:
    case at::kComplexDouble:
      return grad * static_cast<double>(inverse);
    case at::kComplexHalf:
      return (grad.to(at::kComplexFloat) * inverse).to(at::kComplexHalf);
    case at::kHalf:
    case at::kBFloat16:
      return (grad.to(at::kFloat) * inverse).to(grad.scalar_type());
    default:
      return grad * inverse;
  }
}

bool same(const torch::Tensor& a, const torch::Tensor& b) {
  const auto real = [](const torch::Tensor& t) {
    return t.is_complex() ? torch::view_as_real(t.contiguous()) : t;
  };
  return torch::allclose(real(a).to(at::kDouble), real(b).to(at::kDouble), 0, 0,
                         /*equal_nan=*/true);
}

const std::array kDtypes{at::kFloat,        at::kDouble,        at::kHalf,       at::kBFloat16,
                         at::kComplexFloat, at::kComplexDouble, at::kComplexHalf};

torch::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto kind = at::isComplexType(dtype) ? at::kComplexFloat : at::kFloat;
  return (randn(sizes, kind) * 100).to(dtype);
}

}  // namespace

TEST_CASE("unscale_ divides every dtype by the scale, rounding once", "[ops]") {
  ON_EACH_DEVICE();
  torch::manual_seed(1);
  for (const auto dtype : kDtypes) {
    for (const int64_t numel : {1, 7, 64, 1000, 16384, 16385, 50000}) {
      for (const float scale : {65536.0f, 3.0f, 0.1f}) {
        const auto grad = random({numel}, dtype);
        const auto expected = reference(grad, scale);
        INFO(dtype << " x " << numel << " / " << scale);
        const bool overflow = unscale({grad}, scale);
        CHECK(same(grad, expected));
        CHECK(overflow == !torch::isfinite(expected).all().item<bool>());
      }
    }
  }
}

TEST_CASE("K47: one list of mixed dtypes and shapes has one flag", "[ops]") {
  ON_EACH_DEVICE();
  torch::manual_seed(2);
  std::vector<torch::Tensor> grads;
  std::vector<torch::Tensor> expected;
  for (const auto dtype : kDtypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {3}, {40, 50}, {0}, {2, 0, 3}}) {
      grads.push_back(random(sizes, dtype));
      expected.push_back(reference(grads.back(), 8));
    }
  }
  CHECK_FALSE(unscale(grads, 8));
  for (std::size_t i = 0; i < grads.size(); ++i) {
    CHECK(same(grads[i], expected[i]));
  }
}

TEST_CASE("A single non-finite element anywhere sets the flag", "[ops]") {
  ON_EACH_DEVICE();
  for (const auto dtype : kDtypes) {
    for (const float bad : {kInf, -kInf, kNaN}) {
      for (const int64_t numel : {1, 5, 33, 40000}) {
        for (const int64_t position : {int64_t{0}, numel / 2, numel - 1}) {
          auto grad = ones({numel}, dtype);
          grad[position] = bad;
          CHECK(unscale({ones({3}), grad, ones({2}, at::kHalf)}, 2));
        }
      }
    }
  }
}

TEST_CASE("K5: a finite gradient that unscales to infinity is an overflow", "[ops]") {
  ON_EACH_DEVICE();
  auto grad = full({3}, 1e36f);
  CHECK(unscale({grad}, 0x1p-10f));
  auto half = full({3}, 60000.0f, at::kHalf);
  CHECK(unscale({half}, 0.5f));
  auto fits = full({3}, 1e200, at::kDouble);
  CHECK_FALSE(unscale({fits}, 0x1p-10f));
}

TEST_CASE("The flag is only ever set, and may have one dimension", "[ops]") {
  ON_EACH_DEVICE();
  const auto found_inf = ones({1});
  torchamp::unscale_({ones({2})}, found_inf, full({1}, 2.0f));
  CHECK(found_inf.item<float>() == 1.0f);
}

TEST_CASE("scale_is_inverse multiplies by the value as it is", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = full({2}, 3.0f);
  torchamp::unscale_({grad}, scalar(0), scalar(0.25f), /*scale_is_inverse=*/true);
  CHECK(torch::equal(grad, full({2}, 0.75f)));
}

TEST_CASE("With a scale of 1 gradients are only looked at", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = tensor({1.0f, -0.0f, 3e38f, kInf});
  const auto before = grad.clone();
  CHECK(unscale({grad}, 1));
  CHECK(torch::equal(grad, before));
  CHECK(unscale({full({3}, kNaN, at::kHalf)}, 1));
  CHECK_FALSE(unscale({ones({3}, at::kBFloat16)}, 1));
}

TEST_CASE("K41: tensors without elements and an empty list are fine", "[ops]") {
  ON_EACH_DEVICE();
  const auto empty = ones({0});
  CHECK_FALSE(unscale({}, 4));
  CHECK_FALSE(unscale({empty}, 4));
  const auto grad = full({2}, 4.0f);
  CHECK_FALSE(unscale({empty, grad, ones({3, 0}, at::kHalf), empty}, 4));
  CHECK(torch::equal(grad, ones({2})));
}

TEST_CASE("K45: layouts keep their strides, gaps keep their content", "[ops]") {
  ON_EACH_DEVICE();
  torch::manual_seed(3);
  const auto base = randn({6, 8, 4, 4});
  const auto views = std::vector<std::function<torch::Tensor(torch::Tensor)>>{
      [](const torch::Tensor& t) { return t.transpose(0, 1); },
      [](const torch::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); },
      [](const torch::Tensor& t) { return t.slice(1, 2, 5); },
      [](const torch::Tensor& t) { return t.slice(3, 0, 4, 2).transpose(0, 2); },
      [](const torch::Tensor& t) { return t.select(3, 1); },
      [](const torch::Tensor& t) {
        return t.as_strided({3, 2, 2}, {40, 3, 4}, 5);
      }};
  for (const auto& view : views) {
    const auto storage = base.clone();
    const auto expected = base.clone();
    const auto grad = view(storage);
    view(expected).div_(4);
    const auto strides = grad.strides().vec();
    CHECK_FALSE(unscale({grad}, 4));
    CHECK(torch::equal(storage, expected));
    CHECK(torch::equal(grad, view(base) / 4));
    CHECK(grad.strides().vec() == strides);
  }
}

TEST_CASE("A tensor that is in the list twice is unscaled once", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = full({4, 2}, 8.0f);
  const auto gapped = full({4, 4}, 8.0f).slice(1, 0, 2);
  CHECK_FALSE(unscale({grad, gapped, grad.t(), grad.view({8}), gapped}, 8));
  CHECK(torch::equal(grad, ones({4, 2})));
  CHECK(torch::equal(gapped, ones({4, 2})));
}

TEST_CASE("Neighbouring views of one buffer are all unscaled", "[ops]") {
  ON_EACH_DEVICE();
  const auto buffer = full({100}, 2.0f);
  std::vector<torch::Tensor> views;
  for (int64_t i = 0; i < 100; i += 10) {
    views.push_back(buffer.slice(0, i, i + 10));
  }
  CHECK_FALSE(unscale(views, 2));
  CHECK(torch::equal(buffer, ones({100})));
}

TEST_CASE("A tensor that overlaps itself is refused and nothing is changed", "[ops]") {
  ON_EACH_DEVICE();
  const auto good = full({2}, 4.0f);
  const auto base = full({8}, 4.0f);
  for (const auto& bad : {base.slice(0, 0, 1).expand({5}), base.as_strided({3, 4}, {1, 1}),
                          base.as_strided({3, 3}, {2, 1})}) {
    CHECK_THROWS_AS(unscale({good, bad}, 4), c10::Error);
    CHECK(torch::equal(good, full({2}, 4.0f)));
    CHECK(torch::equal(base, full({8}, 4.0f)));
  }
  const auto interleaved = full({6}, 4.0f).as_strided({2, 2}, {3, 2});  // 0 2 3 5
  CHECK_FALSE(unscale({interleaved}, 4));
  CHECK(torch::equal(interleaved, ones({2, 2})));
}

TEST_CASE("Bad arguments are errors and nothing is changed", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = full({2}, 4.0f);
  const auto flag = scalar(0);
  const auto scale = scalar(4);
  const auto meta = ones({2}, at::kMeta);
  const auto sparse = torch::eye(2).to(on_device::current()).to_sparse();
  CHECK_THROWS_AS(torchamp::unscale_({grad}, zeros({2}), scale), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad}, flag, ones({2})), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad}, flag.to(at::kDouble), scale), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad}, flag, scale.to(at::kDouble)), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad, meta}, flag, scale), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad, ones({2}, at::kInt)}, flag, scale),
                  c10::NotImplementedError);
  CHECK_THROWS_AS(torchamp::unscale_({grad, sparse}, flag, scale), c10::NotImplementedError);
  CHECK(torch::equal(grad, full({2}, 4.0f)));
  CHECK(flag.item<float>() == 0.0f);
}

TEST_CASE("Leaves that require gradients, inference tensors and conjugate views are taken",
          "[ops]") {
  ON_EACH_DEVICE();
  const auto leaf = full({2}, 4.0f, torch::requires_grad());
  const auto version = leaf._version();
  CHECK_FALSE(unscale({leaf}, 4));
  CHECK(torch::equal(leaf.detach(), ones({2})));
  CHECK(leaf._version() == version);

  const auto z = full({2}, c10::complex<float>(4, 8));
  CHECK_FALSE(unscale({z.conj()}, 4));
  CHECK(same(z, full({2}, c10::complex<float>(1, 2))));

  const c10::InferenceMode inference;
  const auto grad = full({2}, 4.0f);
  CHECK_FALSE(unscale({grad}, 4));
  CHECK(torch::equal(grad, ones({2})));
}

TEST_CASE("Copy-on-write gradients do not change their twin", "[ops]") {
  ON_EACH_DEVICE();
  const auto original = full({4}, 4.0f);
  const auto lazy = at::_lazy_clone(original);
  CHECK_FALSE(unscale({lazy}, 4));
  CHECK(torch::equal(lazy, ones({4})));
  CHECK(torch::equal(original, full({4}, 4.0f)));
}

TEST_CASE("Results equal PyTorch's operator bit for bit on random lists", "[ops]") {
  ON_EACH_DEVICE();
  std::mt19937 random_engine(7);
  torch::manual_seed(7);
  std::vector<at::ScalarType> dtypes{at::kFloat, at::kDouble, at::kHalf};
  if (on_device::current().is_cpu()) {
    dtypes.push_back(at::kBFloat16);  // PyTorch's CUDA kernel has none
  }
  for (int round = 0; round < 200; ++round) {
    std::vector<torch::Tensor> ours;
    std::vector<torch::Tensor> stock;
    const auto count = random_engine() % 6;
    for (unsigned i = 0; i < count; ++i) {
      auto grad = random({static_cast<int64_t>(random_engine() % 3000)},
                         dtypes[random_engine() % dtypes.size()]);
      if (grad.numel() > 0 && random_engine() % 8 == 0) {
        grad[static_cast<int64_t>(random_engine()) % grad.numel()] =
            random_engine() % 2 == 0 ? kInf : kNaN;
      }
      ours.push_back(grad.clone());
      stock.push_back(grad);
    }
    const float scale = std::ldexp(1.0f + static_cast<float>(random_engine() % 100) / 100.0f,
                                   static_cast<int>(random_engine() % 16));
    auto flag = scalar(0);
    at::_amp_foreach_non_finite_check_and_unscale_(stock, flag, scalar(1.0f / scale));
    CHECK(unscale(ours, scale) == (flag.item<float>() != 0.0f));
    for (std::size_t i = 0; i < ours.size(); ++i) {
      CHECK(same(ours[i], stock[i]));
    }
  }
}

TEST_CASE("The thread count does not change results", "[ops]") {
  torch::manual_seed(5);
  std::vector<torch::Tensor> grads;
  for (const int64_t numel : {100000, 3, 70000, 16384, 1, 200000}) {
    grads.push_back(randn({numel}));
  }
  std::vector<torch::Tensor> expected;
  for (const auto& grad : grads) {
    expected.push_back(reference(grad, 3));
  }
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3, 4}) {
    at::set_num_threads(count);
    std::vector<torch::Tensor> copies;
    for (const auto& grad : grads) {
      copies.push_back(grad.clone());
    }
    CHECK_FALSE(unscale(copies, 3));
    for (std::size_t i = 0; i < grads.size(); ++i) {
      CHECK(torch::equal(copies[i], expected[i]));
    }
    copies.back()[-1] = kNaN;
    CHECK(unscale(copies, 3));
  }
  at::set_num_threads(threads);
}

TEST_CASE("Meta tensors pass the checks and nothing else", "[ops]") {
  const auto on_meta = [](at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return torch::empty(sizes, torch::TensorOptions(dtype).device(at::kMeta));
  };
  torchamp::unscale_({on_meta({3}), on_meta({2, 2}, at::kHalf)}, on_meta({}), on_meta({}));
  torchamp::update_scale_(on_meta({}), on_meta({}, at::kInt), {on_meta({})}, 2, 0.5, 3);
  CHECK_THROWS_AS(torchamp::unscale_({on_meta({3})}, on_meta({2}), on_meta({})), c10::Error);
}

namespace {

struct Update {
  torch::Tensor scale;
  torch::Tensor tracker = zeros({}, at::kInt);

  void operator()(const std::vector<float>& flags, double growth = 2, double backoff = 0.5,
                  int64_t interval = 3) {
    std::vector<torch::Tensor> found;
    for (const float flag : flags) {
      found.push_back(scalar(flag));
    }
    torchamp::update_scale_(scale, tracker, found, growth, backoff, interval);
  }
};

}  // namespace

TEST_CASE("K2: update_scale_ grows after the interval and backs off after an overflow", "[ops]") {
  ON_EACH_DEVICE();
  Update update{scalar(1)};
  std::vector<float> scales;
  std::vector<int> trackers;
  for (int step = 1; step <= 7; ++step) {
    update({step == 5 ? kNaN : 0.0f});
    scales.push_back(update.scale.item<float>());
    trackers.push_back(update.tracker.item<int>());
  }
  CHECK(scales == std::vector<float>{1, 1, 2, 2, 1, 1, 1});
  CHECK(trackers == std::vector<int>{1, 2, 0, 1, 0, 1, 2});
}

TEST_CASE("An overflow in any flag counts", "[ops]") {
  ON_EACH_DEVICE();
  for (const auto& flags :
       std::vector<std::vector<float>>{{1, 0, 0}, {0, 0, 1}, {0, 2}, {kNaN, 0}, {kInf}}) {
    Update update{scalar(8)};
    update(flags);
    CHECK(update.scale.item<float>() == 4);
  }
}

TEST_CASE("K6: growth that would be infinite is left out", "[ops]") {
  ON_EACH_DEVICE();
  Update update{scalar(0x1p127f)};
  update({0}, 2, 0.5, 1);
  CHECK(update.scale.item<float>() == 0x1p127f);
  CHECK(update.tracker.item<int>() == 0);
}

TEST_CASE("K8: a tracker above the interval grows at the next update", "[ops]") {
  ON_EACH_DEVICE();
  Update update{scalar(4), full({}, 7, at::kInt)};
  update({0}, 2, 0.5, 5);
  CHECK(update.scale.item<float>() == 8);
  CHECK(update.tracker.item<int>() == 0);
}

TEST_CASE("update_scale_ equals PyTorch's operator on random sequences", "[ops]") {
  ON_EACH_DEVICE();
  std::mt19937 random_engine(11);
  for (int round = 0; round < 100; ++round) {
    const double growth = 1.0 + static_cast<double>(random_engine() % 1000 + 1) / 700.0;
    const double backoff = static_cast<double>(random_engine() % 999 + 1) / 1000.0;
    const auto interval = static_cast<int64_t>(random_engine() % 4 + 1);
    const float start = std::ldexp(1.0f + static_cast<float>(random_engine() % 100) / 100.0f,
                                   static_cast<int>(random_engine() % 40) - 20);
    Update update{scalar(start)};
    auto scale = scalar(start);
    auto tracker = zeros({}, at::kInt);
    for (int step = 0; step < 30; ++step) {
      const float flag = random_engine() % 4 == 0 ? 1.0f : 0.0f;
      update({flag}, growth, backoff, interval);
      at::_amp_update_scale_(scale, tracker, scalar(flag), growth, backoff, interval);
      REQUIRE(update.scale.item<float>() == scale.item<float>());
      REQUIRE(update.tracker.item<int>() == tracker.item<int>());
    }
  }
}

TEST_CASE("update_scale_ refuses bad arguments", "[ops]") {
  ON_EACH_DEVICE();
  const auto tracker = zeros({}, at::kInt);
  CHECK_THROWS_AS(torchamp::update_scale_(scalar(1), tracker, {}, 2, 0.5, 3), c10::Error);
  CHECK_THROWS_AS(torchamp::update_scale_(scalar(1), tracker.to(at::kLong), {scalar(0)}, 2, 0.5, 3),
                  c10::Error);
  CHECK_THROWS_AS(
      torchamp::update_scale_(scalar(1).to(at::kDouble), tracker, {scalar(0)}, 2, 0.5, 3),
      c10::Error);
  CHECK_THROWS_AS(torchamp::update_scale_(scalar(1), tracker, {zeros({2})}, 2, 0.5, 3), c10::Error);
}

namespace {

struct Clipped {
  double norm;
  bool overflow;
};

Clipped clip(at::TensorList grads, std::optional<float> scale, double max_norm) {
  const auto found_inf = scalar(0);
  const auto norm = torchamp::clip_grad_norm_(
      grads, found_inf, scale ? std::optional(scalar(*scale)) : std::nullopt, max_norm);
  CHECK(norm.scalar_type() == at::kDouble);
  return {norm.item<double>(), found_inf.item<float>() != 0.0f};
}

double norm_of(at::TensorList grads, double inverse) {
  long double sum = 0;
  for (const auto& grad : grads) {
    const auto flat = (grad.is_complex() ? torch::view_as_real(grad) : grad)
                          .to(at::kCPU, at::kDouble)
                          .contiguous()
                          .view(-1);
    for (int64_t i = 0; i < flat.numel(); ++i) {
      const long double value = flat.const_data_ptr<double>()[i];
      sum += value * value;
    }
  }
  return static_cast<double>(std::sqrt(sum) * static_cast<long double>(inverse));
}

std::vector<torch::Tensor> cloned(at::TensorList tensors) {
  std::vector<torch::Tensor> clones;
  for (const auto& tensor : tensors) {
    clones.push_back(tensor.clone());
  }
  return clones;
}

}  // namespace

TEST_CASE("K36: clip_grad_norm_ gives the norm of the true gradients and clips to it", "[ops]") {
  ON_EACH_DEVICE();
  const auto a = full({1}, 3.0f * 8);
  const auto b = full({1}, 4.0f * 8);
  const auto result = clip({a, b}, 8.0f, 1);
  CHECK(result.norm == Approx(5).epsilon(1e-9));
  CHECK_FALSE(result.overflow);
  CHECK(a.item<float>() == Approx(0.6).epsilon(1e-6));
  CHECK(b.item<float>() == Approx(0.8).epsilon(1e-6));
}

TEST_CASE("clip_grad_norm_ equals unscaling and clipping one after the other", "[ops]") {
  ON_EACH_DEVICE();
  torch::manual_seed(17);
  for (const auto dtype : kDtypes) {
    for (const double max_norm : {0.0, 0.5, 1e9, static_cast<double>(kInf)}) {
      std::vector<torch::Tensor> grads;
      for (const int64_t numel : {1, 0, 1000, 16384, 16390}) {
        grads.push_back(random({numel}, dtype));
      }
      const auto expected_norm = norm_of(grads, 0.25);
      const double coefficient = std::min(1.0, max_norm / (expected_norm + 1e-6));
      const auto before = cloned(grads);
      const auto result = clip(grads, 4.0f, max_norm);
      INFO(dtype << " to " << max_norm);
      CHECK(result.norm == Approx(expected_norm).epsilon(1e-6));
      const bool half = at::elementSize(at::toRealValueType(dtype)) == 2;
      for (std::size_t i = 0; i < grads.size(); ++i) {
        const auto wide = at::isComplexType(dtype) ? at::kComplexDouble : at::kDouble;
        CHECK(torch::allclose(grads[i].to(wide), before[i].to(wide) * (0.25 * coefficient),
                              half ? 1e-2 : 1e-6, half ? 1e-6 : 0));
      }
    }
  }
}

TEST_CASE("A tensor that is in the list twice counts once in the norm", "[ops]") {
  ON_EACH_DEVICE();
  const auto dense = full({1}, 3.0f);
  const auto rows = zeros({4, 4}).slice(1, 0, 2);
  rows[0][0] = 4;
  CHECK(clip({dense, rows, dense.view({1, 1}), rows}, std::nullopt, 100).norm == 5);
}

TEST_CASE("Without a scale clip_grad_norm_ only clips", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = tensor({3.0f, 4.0f});
  CHECK(clip({grad}, std::nullopt, 10).norm == 5);
  CHECK(torch::equal(grad, tensor({3.0f, 4.0f})));
  CHECK(clip({grad}, std::nullopt, 2.5).norm == 5);
  CHECK(torch::allclose(grad, tensor({1.5f, 2.0f})));
}

TEST_CASE("K37: after an overflow clip_grad_norm_ leaves gradients as they were", "[ops]") {
  ON_EACH_DEVICE();
  for (const float bad : {kInf, kNaN}) {
    const auto grads = std::vector{full({3}, 2.0f), full({2}, bad)};
    const auto before = cloned(grads);
    const auto result = clip(grads, 8.0f, 1);
    CHECK(result.overflow);
    CHECK_FALSE(std::isfinite(result.norm));
    CHECK(same(grads[0], before[0]));
    CHECK(same(grads[1], before[1]));
  }
  const auto grad = full({3}, 1e36f);
  CHECK(clip({grad}, 0x1p-10f, 1).overflow);
  CHECK(torch::equal(grad, full({3}, 1e36f)));
}

TEST_CASE("Squares that overflow or vanish in float do not spoil the norm", "[ops]") {
  ON_EACH_DEVICE();
  for (const float value : {1e30f, 3e38f, 1e-30f, 1e-42f}) {
    const auto grad = full({100}, value);
    const auto before = grad.clone();
    const auto result = clip({grad}, 1.0f, 1);
    CHECK(result.norm == Approx(static_cast<double>(value) * 10).epsilon(1e-6));
    CHECK_FALSE(result.overflow);
    if (value > 1) {
      CHECK(torch::allclose(grad, full({100}, 0.1f), 1e-5));
    } else {
      CHECK(torch::equal(grad, before));
    }
  }
  for (const double value : {1e200, 1e-200, 1e-320}) {
    const auto grad = full({100}, value, at::kDouble);
    CHECK(clip({grad}, 1.0f, 1e300).norm == Approx(value * 10).epsilon(1e-3));
  }
  const auto huge = full({4}, 1e200, at::kDouble);
  clip({huge}, 1.0f, 1);
  CHECK(torch::allclose(huge, full({4}, 0.5, at::kDouble), 1e-6));
}

TEST_CASE("A negative scale clips to the same length, in the other direction", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = tensor({-24, -32});
  const auto result = clip({grad}, -8.0f, 1);
  CHECK(result.norm == Approx(5));
  CHECK(torch::allclose(grad, tensor({0.6f, 0.8f}), 1e-5));
  const auto short_one = tensor({-24, -32});
  CHECK(clip({short_one}, -8.0f, 100).norm == Approx(5));
  CHECK(torch::equal(short_one, tensor({3, 4})));
}

TEST_CASE("An interval of 0 or less never grows, as in PyTorch", "[ops]") {
  ON_EACH_DEVICE();
  for (const int64_t interval : {0, -5}) {
    const auto scale = scalar(8);
    const auto tracker = zeros({}, at::kInt);
    for (int i = 1; i <= 3; ++i) {
      torchamp::update_scale_(scale, tracker, scalar(0), 2.0, 0.5, interval);
      CHECK(scale.item<float>() == 8);
      CHECK(tracker.item<int>() == i);
    }
  }
}

#ifndef NDEBUG
TEST_CASE("Debug builds refuse gradients that share a part of their memory", "[ops]") {
  const auto whole = full({10}, 6.0f);
  const auto found_inf = scalar(0);
  CHECK_THROWS_AS(
      torchamp::unscale_({whole.slice(0, 0, 6), whole.slice(0, 5, 10)}, found_inf, scalar(2)),
      c10::Error);
  CHECK(torch::equal(whole, full({10}, 6.0f)));
  torchamp::unscale_({whole.slice(0, 0, 5), whole.slice(0, 5, 10)}, found_inf, scalar(2));
  CHECK(torch::equal(whole, full({10}, 3.0f)));
}
#endif

TEST_CASE("Many gradients with gaps, one of them twice, are unscaled once each", "[ops]") {
  ON_EACH_DEVICE();
  const auto whole = full({8, 3000}, 6.0f);
  auto columns = whole.unbind(1);
  columns.push_back(whole.select(1, 17));
  const auto found_inf = scalar(0);
  torchamp::unscale_(columns, found_inf, scalar(2));
  CHECK(torch::equal(whole, full({8, 3000}, 3.0f)));
}

TEST_CASE("The thread count does not change a bit of the norm", "[ops]") {
  torch::manual_seed(19);
  std::vector<torch::Tensor> grads;
  for (const int64_t numel : {100000, 3, 70000, 16384, 1, 200000}) {
    grads.push_back(randn({numel}));
  }
  const int threads = at::get_num_threads();
  std::vector<double> norms;
  for (const int count : {1, 2, 3, 4}) {
    at::set_num_threads(count);
    norms.push_back(clip(cloned(grads), 3.0f, 1).norm);
  }
  at::set_num_threads(threads);
  CHECK(norms == std::vector<double>(4, norms.front()));
}

TEST_CASE("clip_grad_norm_ refuses what unscale_ refuses, and a negative limit", "[ops]") {
  ON_EACH_DEVICE();
  const auto grad = full({2}, 4.0f);
  CHECK_THROWS_AS(clip({grad}, 2.0f, -1), c10::Error);
  CHECK_THROWS_AS(clip({grad}, 2.0f, kNaN), c10::Error);
  CHECK_THROWS_AS(clip({grad, ones({1}).expand({5})}, 2.0f, 1), c10::Error);
  CHECK(torch::equal(grad, full({2}, 4.0f)));
  CHECK(clip({}, 2.0f, 1).norm == 0);
}

namespace {

// A backend without kernels of ours: what its entry in the dispatch table does to CPU tensors.
const c10::DispatchKeySet kNoKernel(c10::DispatchKey::XPU);

bool unscale_by_fallback(at::TensorList grads, float scale) {
  const auto found_inf = scalar(0);
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("torchamp::unscale_", "")
      .typed<decltype(torchamp::unscale_)>()
      .redispatch(kNoKernel, grads, found_inf, scalar(scale), false);
  return found_inf.item<float>() != 0.0f;
}

}  // namespace

TEST_CASE("The fallback for other devices gives the same results", "[ops]") {
  ON_EACH_DEVICE();
  torch::manual_seed(13);
  for (const auto dtype : kDtypes) {
    for (const float scale : {65536.0f, 3.0f}) {
      const auto grad = random({33, 3}, dtype);
      const auto gapped = random({6, 6}, dtype).slice(1, 0, 6, 2);
      const auto expected = reference(grad, scale);
      const auto expected_gapped = reference(gapped, scale);
      CHECK_FALSE(unscale_by_fallback({grad, gapped, grad.t(), ones({0})}, scale));
      CHECK(same(grad, expected));
      CHECK(same(gapped, expected_gapped));
      auto bad = ones({4}, dtype);
      bad[2] = kInf;
      CHECK(unscale_by_fallback({grad, bad}, scale));
    }
  }
  CHECK(unscale_by_fallback({full({3}, 1e36f)}, 0x1p-10f));
  CHECK_THROWS_AS(unscale_by_fallback({ones({1}).expand({5})}, 2), c10::Error);

  const auto clip_by_fallback = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("torchamp::clip_grad_norm_", "")
                                    .typed<decltype(torchamp::clip_grad_norm_)>();
  for (const auto dtype : kDtypes) {
    const auto grads = std::vector{full({2}, 24.0f).to(dtype), ones({0})};
    const auto flag = scalar(0);
    const auto norm = clip_by_fallback.redispatch(kNoKernel, grads, flag, scalar(8), 1);
    CHECK(norm.item<double>() == Approx(3 * std::sqrt(2.0)));
    CHECK(torch::allclose(torch::abs(grads[0]).to(at::kDouble),
                          full({2}, std::sqrt(0.5), at::kDouble), 1e-2));
    grads[0][1] = kInf;
    const auto before = grads[0].clone();
    clip_by_fallback.redispatch(kNoKernel, grads, flag, scalar(8), 1);
    CHECK(flag.item<float>() == 1.0f);
    CHECK(same(grads[0], before));
  }

  const auto huge = full({4}, 1e200, at::kDouble);
  const auto version = huge._version();
  clip_by_fallback.redispatch(kNoKernel, {huge}, scalar(0), std::nullopt, 1);
  CHECK(torch::allclose(huge, full({4}, 0.5, at::kDouble), 1e-6));
  unscale_by_fallback({huge}, 2);
  CHECK(huge._version() == version);

  const auto scale = scalar(4);
  const auto tracker = full({}, 7, at::kInt);
  const auto update = c10::Dispatcher::singleton()
                          .findSchemaOrThrow("torchamp::update_scale_", "")
                          .typed<decltype(torchamp::update_scale_)>();
  const std::vector<torch::Tensor> clean{scalar(0), scalar(0)};
  update.redispatch(kNoKernel, scale, tracker, clean, 2, 0.5, 5);
  CHECK(scale.item<float>() == 8);
  CHECK(tracker.item<int>() == 0);
  const std::vector<torch::Tensor> overflow{scalar(0), scalar(kNaN)};
  update.redispatch(kNoKernel, scale, tracker, overflow, 2, 0.5, 5);
  CHECK(scale.item<float>() == 4);
}

TEST_CASE("A scale or flag with a negative bit is refused", "[ops]") {
  const auto negative = torch::imag(torch::complex(ones({}), full({}, -4.0f)).conj());
  REQUIRE(negative.is_neg());
  const auto grad = full({2}, 8);
  CHECK_THROWS_AS(torchamp::unscale_({grad}, scalar(0), negative), c10::Error);
  CHECK_THROWS_AS(torchamp::unscale_({grad}, negative, scalar(2)), c10::Error);
  CHECK_THROWS_AS(torchamp::clip_grad_norm_({grad}, scalar(0), negative, 1), c10::Error);
  CHECK(torch::equal(grad, full({2}, 8)));
}
