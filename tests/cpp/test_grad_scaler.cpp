#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.h"
#include "devices.h"
#include "other_device.h"

using on_device::full;
using on_device::indices;
using on_device::ones;
using on_device::zeros;
using torchamp::GradScaler;
using torchamp::GradScalerOptions;
using torchamp::StepResult;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// A parameter of four ones with an SGD optimizer: the setting of most cases.
struct Toy {
  torch::Tensor p = ones({4}, torch::requires_grad());
  torch::optim::SGD optimizer;

  explicit Toy(double lr = 1) : optimizer({p}, lr) {}

  /// One iteration's backward with gradients `factor` (inf or NaN makes an overflow).
  void backward(GradScaler& scaler, double factor = 1) {
    optimizer.zero_grad();
    scaler.scale(p.sum() * factor).backward();
  }
  [[nodiscard]] bool holds(double value) const {
    return torch::equal(p.detach(), full({4}, value));
  }
};

GradScalerOptions scale_of(double scale) { return GradScalerOptions().init_scale(scale); }

/// An optimizer whose step throws when told to.
class Moody : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    if (throws) {
      throw std::runtime_error("out of memory");
    }
    return torch::optim::SGD::step(std::move(closure));
  }
  bool throws = false;
};

template <typename F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// Whether it throws c10::Error with these words.
template <typename F>
bool says(F&& f, const std::string& words) {
  return message_of(std::forward<F>(f)).find(words) != std::string::npos;
}

}  // namespace

TEST_CASE("The loop of the README trains", "[grad_scaler]") {
  torch::manual_seed(1);
  torch::nn::Linear model(2, 1);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torch::nn::MSELoss criterion;
  std::vector<torch::data::Example<>> batches(50, {torch::ones({8, 2}), torch::zeros({8, 1})});
  auto* const loader = &batches;
  const double before = model->forward(torch::ones({1, 2})).abs().item<double>();

  // As in README.md, but for the device; tests/python/test_readme.py compares the two.
  torchamp::GradScaler scaler;

  for (auto& batch : *loader) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::AutocastGuard autocast(torch::kCPU);
      loss = criterion(model->forward(batch.data), batch.target);
    }
    scaler.scale(loss).backward();
    scaler.clip_grad_norm_(optimizer, 1.0);
    scaler.step(optimizer);
    scaler.update();
  }
  // The end of README.md's.
  CHECK(model->forward(torch::ones({1, 2})).abs().item<double>() < 0.1 * before);
}

TEST_CASE("K1: gradients are unscaled before the step", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(8));
  toy.backward(scaler);
  CHECK(torch::equal(toy.p.grad(), full({4}, 8.0f)));
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
  scaler.update();
  CHECK(toy.holds(0));
  CHECK(torch::equal(toy.p.grad(), ones({4})));
  CHECK(scaler.get_scale() == 8);
}

TEST_CASE("K2: the scale grows after the interval and backs off after an overflow",
          "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy(0);
  GradScaler scaler(scale_of(1).growth_interval(3));
  std::vector<double> scales;
  std::vector<int64_t> trackers;
  for (int step = 1; step <= 7; ++step) {
    toy.backward(scaler, step == 5 ? kNaN : 1);
    scaler.step(toy.optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
    trackers.push_back(scaler.get_growth_tracker());
  }
  CHECK(scales == std::vector<double>{1, 1, 2, 2, 1, 1, 1});
  CHECK(trackers == std::vector<int64_t>{1, 2, 0, 1, 0, 1, 2});
}

TEST_CASE("K5: a gradient that overflows when unscaled skips the step", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(0x1p-10));
  toy.backward(scaler);
  toy.p.mutable_grad().fill_(1e36);
  CHECK(scaler.step(toy.optimizer) == StepResult::skipped);
  scaler.update();
  CHECK(toy.holds(1));
  CHECK(scaler.get_scale() == 0x1p-11);
}

TEST_CASE("K15: the result says whether the step was skipped", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(4));
  toy.backward(scaler, kInf);
  CHECK(scaler.step(toy.optimizer) == StepResult::skipped);
  scaler.update();
  CHECK(toy.holds(1));
  toy.backward(scaler);
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
  scaler.update();
  CHECK(scaler.get_scale() == 2);
}

TEST_CASE("K22: each optimizer skips by itself, the scale backs off once", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy good;
  Toy bad;
  GradScaler scaler(scale_of(8));
  good.backward(scaler);
  bad.backward(scaler, kInf);
  CHECK(scaler.step(good.optimizer) == StepResult::stepped);
  CHECK(scaler.step(bad.optimizer) == StepResult::skipped);
  scaler.update();
  CHECK(good.holds(0));
  CHECK(bad.holds(1));
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("K24: calls out of order are errors that say what to call", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(8));
  CHECK_THROWS_AS(scaler.unscale_(toy.optimizer), c10::Error);
  CHECK_THROWS_AS(scaler.step(toy.optimizer), c10::Error);
  CHECK_THROWS_AS(scaler.update(), c10::Error);
  CHECK_THROWS_AS(scaler.update(2.0), c10::Error);
  toy.backward(scaler);
  CHECK_THROWS_AS(scaler.update(), c10::Error);
  scaler.unscale_(toy.optimizer);
  CHECK(message_of([&] { scaler.unscale_(toy.optimizer); }).find("update()") != std::string::npos);
  CHECK(torch::equal(toy.p.grad(), ones({4})));
  scaler.step(toy.optimizer);
  CHECK(message_of([&] { scaler.step(toy.optimizer); }).find("update()") != std::string::npos);
  CHECK_THROWS_AS(scaler.unscale_(toy.optimizer), c10::Error);
  CHECK(toy.holds(0));
  scaler.update();
  toy.backward(scaler);
  scaler.unscale_(toy.optimizer);
}

namespace {

/// A parameter of ones whose gradient is 1, after a step that threw.
struct FailedStep {
  at::Tensor p = ones({4}, torch::requires_grad());
  Moody optimizer{{p}, torch::optim::SGDOptions(1)};
  GradScaler scaler{scale_of(8).growth_interval(1)};

  FailedStep() { backward_and_fail(); }

  void backward() { scaler.scale(p.sum()).backward(); }

  void backward_and_fail() {
    backward();
    optimizer.throws = true;
    CHECK_THROWS_AS(scaler.step(optimizer), std::runtime_error);
    optimizer.throws = false;
  }

  [[nodiscard]] bool is_unscaled() const { return torch::equal(p.grad(), ones({4})); }
};

}  // namespace

TEST_CASE("K26: after an exception in the step the next iteration works", "[grad_scaler]") {
  ON_EACH_DEVICE();
  FailedStep run;
  CHECK(run.scaler.get_scale() == 8);
  run.optimizer.zero_grad();
  run.backward();
  run.scaler.unscale_(run.optimizer);
  CHECK(run.is_unscaled());
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
  run.scaler.update();
  CHECK(torch::equal(run.p.detach(), zeros({4})));
}

TEST_CASE("A failed step may be tried again and unscales once", "[grad_scaler]") {
  ON_EACH_DEVICE();
  FailedStep run;
  CHECK_THROWS_AS(run.scaler.unscale_(run.optimizer), c10::Error);
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
  CHECK(torch::equal(run.p.detach(), zeros({4})));
  run.scaler.update();
}

TEST_CASE("A failed step is tried again unless gradients are new", "[grad_scaler]") {
  ON_EACH_DEVICE();
  const bool set_to_none = GENERATE(false, true);
  FailedStep run;
  const auto q = ones({4}, torch::requires_grad());
  torch::optim::SGD other({q}, 1);
  run.scaler.scale(q.sum()).backward();  // of the same iteration
  CHECK_THROWS_AS(run.scaler.unscale_(run.optimizer), c10::Error);
  run.scaler.step(other);
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
  CHECK(run.is_unscaled());
  run.scaler.update();

  run.optimizer.zero_grad(set_to_none);
  run.backward_and_fail();
  run.optimizer.zero_grad(set_to_none);
  run.backward();
  run.scaler.unscale_(run.optimizer);
  CHECK(run.is_unscaled());
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
}

TEST_CASE("Gradients of a failed step are not kept", "[grad_scaler]") {
  FailedStep run;
  (void)run.scaler.scale(run.p.sum());
  const c10::weak_intrusive_ptr<at::TensorImpl, c10::UndefinedTensorImpl> grad(
      run.p.grad().getIntrusivePtr());
  run.optimizer.zero_grad();
  CHECK(grad.expired());
}

TEST_CASE("A failed step may be followed by update", "[grad_scaler]") {
  ON_EACH_DEVICE();
  FailedStep run;
  run.scaler.update();
  CHECK(run.scaler.get_scale() == 16);
}

TEST_CASE("A step that was tried again with success is not forgotten", "[grad_scaler]") {
  FailedStep run;
  run.scaler.step(run.optimizer);
  (void)run.scaler.scale(run.p.sum());
  CHECK_THROWS_AS(run.scaler.step(run.optimizer), c10::Error);
  run.scaler.update();
}

namespace {

/// Two parameters of ones, the first on the CPU, with gradients 8, and what belongs to them.
struct OnTwoDevices {
  std::vector<at::Tensor> parameters{torch::ones({4}, torch::requires_grad()),
                                     torch::ones({4}, on_device::other()).requires_grad_()};
  torch::optim::SGD optimizer{parameters, torch::optim::SGDOptions(1)};
  GradScaler scaler{scale_of(8).growth_interval(1)};

  OnTwoDevices() {
    (void)scaler.scale(torch::ones({}));
    for (at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = torch::full_like(parameter, 8);
    }
  }

  [[nodiscard]] at::Tensor grad(std::size_t i) const { return parameters[i].grad().cpu(); }
  [[nodiscard]] bool are_parameters(float value) const {
    return std::all_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
      return torch::allclose(parameter.detach().cpu(), torch::full({4}, value), 1e-6);
    });
  }
};

}  // namespace

TEST_CASE("K48: one decision for parameters on two devices", "[grad_scaler]") {
  const int bad = GENERATE(-1, 0, 1);
  OnTwoDevices run;
  if (bad >= 0) {
    run.parameters[static_cast<std::size_t>(bad)].mutable_grad()[3] = kInf;
  }
  CHECK(run.scaler.step(run.optimizer) == (bad < 0 ? StepResult::stepped : StepResult::skipped));
  run.scaler.update();
  CHECK(run.are_parameters(bad < 0 ? 0.0f : 1.0f));
  CHECK(run.scaler.get_scale() == (bad < 0 ? 16 : 4));
}

TEST_CASE("K48: clipping over two devices", "[grad_scaler]") {
  const bool unscaled = GENERATE(false, true);
  OnTwoDevices run;
  if (unscaled) {
    run.scaler.unscale_(run.optimizer);
  }
  const at::Tensor norm = run.scaler.clip_grad_norm_(run.optimizer, 1);
  CHECK(norm.item<double>() == Approx(std::sqrt(8.0)));
  CHECK(norm.scalar_type() == at::kDouble);
  const double clipped = 1 / std::sqrt(8.0);
  CHECK(torch::allclose(run.grad(0), torch::full({4}, clipped), 1e-6));
  CHECK(torch::allclose(run.grad(1), torch::full({4}, clipped), 1e-6));
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
  CHECK(run.are_parameters(static_cast<float>(1 - clipped)));
}

TEST_CASE("K48, K37: an overflow on one device leaves gradients of both", "[grad_scaler]") {
  const std::size_t bad = GENERATE(0u, 1u);
  OnTwoDevices run;
  run.parameters[bad].mutable_grad()[3] = kInf;
  const auto before = std::vector{run.grad(0).clone(), run.grad(1).clone()};
  (void)run.scaler.clip_grad_norm_(run.optimizer, 1);
  CHECK(torch::equal(run.grad(0), before[0]));
  CHECK(torch::equal(run.grad(1), before[1]));
  CHECK(run.scaler.step(run.optimizer) == StepResult::skipped);
  run.scaler.update();
  CHECK(run.scaler.get_scale() == 4);
}

TEST_CASE("K48: a collapsed scale skips on two devices", "[grad_scaler]") {
  const bool clips = GENERATE(false, true);
  OnTwoDevices run;
  run.scaler.update(1e-40);
  if (clips) {
    (void)run.scaler.clip_grad_norm_(run.optimizer, 1);
    CHECK(torch::equal(run.grad(1), torch::full({4}, 8.0f)));
  }
  CHECK(run.scaler.step(run.optimizer) == StepResult::skipped);
  CHECK(run.are_parameters(1));
}

TEST_CASE("K48: a gradient that is refused on one device leaves the other's", "[grad_scaler]") {
  const bool clips = GENERATE(false, true);
  OnTwoDevices run;
  run.parameters[1].mutable_grad() = torch::ones({1}, on_device::other()).expand({4});
  const auto call = [&] {
    clips ? (void)run.scaler.clip_grad_norm_(run.optimizer, 1) : run.scaler.unscale_(run.optimizer);
  };
  CHECK_THROWS_AS(call(), c10::Error);
  CHECK(torch::equal(run.grad(0), torch::full({4}, 8.0f)));
}

TEST_CASE("K48: an overflow of a device without gradients by now still counts", "[grad_scaler]") {
  OnTwoDevices run;
  run.parameters[1].mutable_grad()[0] = kInf;
  run.scaler.unscale_(run.optimizer);
  run.parameters[1].mutable_grad().reset();
  (void)run.scaler.clip_grad_norm_(run.optimizer, 1);
  CHECK(run.scaler.step(run.optimizer) == StepResult::skipped);
  run.scaler.update();
  CHECK(run.scaler.get_scale() == 4);
}

namespace {

/// An optimizer that uses its scaler while it steps, as SAM and L-BFGS with closures do.
class Reentrant : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    inner();
    return torch::optim::SGD::step();
  }
  std::function<void()> inner;
};

}  // namespace

TEST_CASE("An optimizer's step may use the scaler", "[grad_scaler]") {
  const auto p = ones({4}, torch::requires_grad());
  Reentrant optimizer({p}, torch::optim::SGDOptions(1));
  GradScaler scaler(scale_of(8));
  scaler.scale(p.sum()).backward();
  optimizer.inner = [&] { (void)scaler.scale(p.sum()); };
  CHECK(scaler.step(optimizer) == StepResult::stepped);
  CHECK_THROWS_AS(scaler.step(optimizer), c10::Error);  // is known to have stepped
  scaler.update();

  optimizer.zero_grad();
  scaler.scale(p.sum()).backward();
  optimizer.inner = [&] { scaler.update(); };
  CHECK(scaler.step(optimizer) == StepResult::stepped);
  CHECK_THROWS_AS(scaler.update(), c10::Error);  // the iteration has ended
}

TEST_CASE("Gradients can be changed between unscale_ and step", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(1024));
  toy.backward(scaler, 10);
  scaler.unscale_(toy.optimizer);
  torch::nn::utils::clip_grad_norm_({toy.p}, 1.0);
  scaler.step(toy.optimizer);
  CHECK(torch::allclose(toy.p.detach(), full({4}, 0.5f), 1e-5, 1e-5));
  scaler.update();

  toy.backward(scaler);
  scaler.unscale_(toy.optimizer);
  toy.p.mutable_grad() = zeros({4});
  scaler.step(toy.optimizer);
  CHECK(torch::allclose(toy.p.detach(), full({4}, 0.5f), 1e-5, 1e-5));
}

TEST_CASE("K36: clip_grad_norm_ unscales and clips in one call", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(1024));
  CHECK_THROWS_AS(scaler.clip_grad_norm_(toy.optimizer, 1), c10::Error);
  toy.backward(scaler, 10);
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1).item<double>() == Approx(20));
  CHECK(torch::allclose(toy.p.grad(), full({4}, 0.5f)));
  CHECK_THROWS_AS(scaler.unscale_(toy.optimizer), c10::Error);
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
  CHECK_THROWS_AS(scaler.clip_grad_norm_(toy.optimizer, 1), c10::Error);
  scaler.update();
  CHECK(torch::allclose(toy.p.detach(), full({4}, 0.5f)));
}

TEST_CASE("clip_grad_norm_ after unscale_ only clips", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(1024));
  toy.backward(scaler, 10);
  scaler.unscale_(toy.optimizer);
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1).item<double>() == Approx(20));
  CHECK(torch::allclose(toy.p.grad(), full({4}, 0.5f)));
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
}

TEST_CASE("A batch left out after clip_grad_norm_ without update is an error", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(1024));
  toy.backward(scaler);
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1e6).item<double>() == Approx(2));
  toy.backward(scaler);
  // Else these gradients, which are scaled, would be taken for those that were unscaled before.
  CHECK(says([&] { scaler.clip_grad_norm_(toy.optimizer, 1e6); }, "already been called"));
  CHECK(says([&] { scaler.unscale_(toy.optimizer); }, "already been called"));
  scaler.update();
  toy.backward(scaler);
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1e6).item<double>() == Approx(2));
}

TEST_CASE("A limit that is no number is refused, also without gradients", "[grad_scaler]") {
  Toy toy;
  GradScaler scaler(scale_of(8));
  (void)scaler.scale(ones({}));
  CHECK(says([&] { scaler.clip_grad_norm_(toy.optimizer, kNaN); }, "0 or more, got nan"));
  CHECK_THROWS_AS(scaler.clip_grad_norm_(toy.optimizer, -1), c10::Error);
}

TEST_CASE("K37: an overflow in clip_grad_norm_ leaves gradients and skips", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(8));
  toy.backward(scaler);
  toy.p.mutable_grad()[1] = kInf;
  const auto before = toy.p.grad().clone();
  scaler.clip_grad_norm_(toy.optimizer, 1);
  CHECK(torch::equal(toy.p.grad(), before));
  CHECK(scaler.step(toy.optimizer) == StepResult::skipped);
  scaler.update();
  CHECK(scaler.get_scale() == 4);
  CHECK(toy.holds(1));
}

TEST_CASE("clip_grad_norm_ of a disabled scaler clips, without gradients the norm is 0",
          "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(GradScalerOptions().enabled(false));
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1).item<double>() == 0);
  toy.backward(scaler, 10);
  CHECK(scaler.clip_grad_norm_(toy.optimizer, 1).item<double>() == Approx(20));
  CHECK(torch::allclose(toy.p.grad(), full({4}, 0.5f)));
}

TEST_CASE("clip_grad_norm_ sums what a sparse gradient has twice", "[grad_scaler]") {
  ON_EACH_DEVICE();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(3, 1).sparse(true));
  embedding->to(on_device::current());
  torch::optim::SGD optimizer(embedding->parameters(), 1);
  GradScaler scaler(scale_of(8));
  scaler.scale(embedding(indices({1, 1, 1, 2})).sum()).backward();
  const double norm = scaler.clip_grad_norm_(optimizer, 1).item<double>();
  CHECK(norm == Approx(std::sqrt(9.0 + 1.0)));
  CHECK(embedding->weight.grad().to_dense()[1].item<float>() == Approx(3 / norm));
}

TEST_CASE("A parameter group added later is unscaled too", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(8));
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update();
  const auto q = ones({2}, torch::requires_grad());
  toy.optimizer.add_param_group(torch::optim::OptimizerParamGroup({q}));
  toy.optimizer.zero_grad();
  scaler.scale(toy.p.sum() + q.sum()).backward();
  scaler.step(toy.optimizer);
  scaler.update();
  CHECK(torch::equal(q.detach(), zeros({2})));
}

TEST_CASE("An optimizer at the address of a destroyed one starts afresh", "[grad_scaler]") {
  ON_EACH_DEVICE();
  GradScaler scaler(scale_of(8));
  alignas(torch::optim::SGD) std::byte place[sizeof(torch::optim::SGD)];
  const auto p = ones({4}, torch::requires_grad());
  {
    auto* first = new (place) torch::optim::SGD({p}, 1);
    scaler.scale(p.sum()).backward();
    scaler.unscale_(*first);
    first->~SGD();
  }
  const auto q = ones({4}, torch::requires_grad());
  auto* second = new (place) torch::optim::SGD({q}, 1);
  scaler.scale(q.sum()).backward();
  scaler.unscale_(*second);
  CHECK(torch::equal(q.grad(), ones({4})));
  second->~SGD();
}

TEST_CASE("An optimizer that was moved, or sorted, is the same one", "[grad_scaler]") {
  const auto p = ones({2}, torch::requires_grad());
  const auto q = ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({p, q}, 1);
  GradScaler scaler(scale_of(8));
  scaler.scale(p.sum() + q.sum()).backward();
  scaler.unscale_(optimizer);
  SECTION("moved") {
    torch::optim::SGD moved(std::move(optimizer));
    CHECK(scaler.step(moved) == StepResult::stepped);
  }
  SECTION("sorted") {
    auto& params = optimizer.param_groups()[0].params();
    std::swap(params[0], params[1]);
    CHECK(scaler.step(optimizer) == StepResult::stepped);
  }
  CHECK(torch::equal(p.grad(), ones({2})));
}

TEST_CASE("The overflow of an optimizer that was destroyed still counts", "[grad_scaler]") {
  const auto p = ones({2}, torch::requires_grad());
  const auto q = ones({2}, torch::requires_grad());
  GradScaler scaler(scale_of(8));
  std::optional<torch::optim::SGD> optimizer;
  optimizer.emplace(std::vector{p}, torch::optim::SGDOptions(1));
  scaler.scale((p * kInf).sum()).backward();
  CHECK(scaler.step(*optimizer) == StepResult::skipped);
  optimizer.emplace(std::vector{q}, torch::optim::SGDOptions(1));
  scaler.scale(q.sum()).backward();
  CHECK(scaler.step(*optimizer) == StepResult::stepped);
  scaler.update();
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("A step may replace or destroy the scaler", "[grad_scaler]") {
  class Replacing : public torch::optim::SGD {
   public:
    using torch::optim::SGD::SGD;
    torch::Tensor step(LossClosure /*closure*/) override {
      scaler->reset();
      if (throws) {
        throw std::runtime_error("out of memory");
      }
      return {};
    }
    std::unique_ptr<GradScaler>* scaler = nullptr;
    bool throws = false;
  };
  const auto p = ones({2}, torch::requires_grad());
  Replacing optimizer({p}, torch::optim::SGDOptions(1));
  auto scaler = std::make_unique<GradScaler>(scale_of(8));
  optimizer.scaler = &scaler;
  scaler->scale(p.sum()).backward();
  optimizer.throws = GENERATE(false, true);
  if (optimizer.throws) {
    CHECK_THROWS_AS(scaler->step(optimizer), std::runtime_error);
  } else {
    CHECK(scaler->step(optimizer) == StepResult::stepped);
  }
}

TEST_CASE("A scaler may be made in inference mode", "[grad_scaler]") {
  const auto p = ones({2}, torch::requires_grad());
  torch::optim::SGD optimizer({p}, 1);
  GradScaler scaler(scale_of(8));
  {
    const c10::InferenceMode on;
    (void)scaler.scale(torch::ones({}));
  }
  scaler.scale(p.sum()).backward();
  CHECK(scaler.step(optimizer) == StepResult::stepped);
  scaler.update(16.0);
  CHECK(scaler.get_scale() == 16);
}

TEST_CASE("Autograd notices that the scale or gradients were written to", "[grad_scaler]") {
  const auto p = ones({2}, torch::requires_grad());
  const auto x = ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer({p}, 1);
  GradScaler scaler(scale_of(8).growth_interval(1));
  const auto old = scaler.scale(x.sum() * 5);
  scaler.scale(p.sum()).backward();
  const auto product = (p.grad() * x * x).sum();
  (void)scaler.clip_grad_norm_(optimizer, 1);
  CHECK_THROWS_AS(product.backward(), c10::Error);
  scaler.step(optimizer);
  scaler.update();
  CHECK_THROWS_AS(old.backward(), c10::Error);
}

TEST_CASE("Gradients that may be mixed after a failed step are an error", "[grad_scaler]") {
  FailedStep run;
  run.backward();  // added to unscaled gradients
  CHECK(message_of([&] { run.scaler.step(run.optimizer); }).find("sums of unscaled and scaled") !=
        std::string::npos);
  CHECK_THROWS_AS(run.scaler.unscale_(run.optimizer), c10::Error);
  run.scaler.update();
  run.optimizer.zero_grad();
  run.backward();
  CHECK(run.scaler.step(run.optimizer) == StepResult::stepped);
}

TEST_CASE("What update and clip_grad_norm_ refuse changes nothing", "[grad_scaler]") {
  const auto p = ones({4}, torch::requires_grad());
  torch::optim::SGD optimizer({p}, 1);
  GradScaler scaler(scale_of(8));
  (void)scaler.scale(p.sum());
  CHECK_THROWS_AS(scaler.update(1e39), c10::Error);
  CHECK(scaler.get_scale() == 8);
  const auto sparse = torch::sparse_coo_tensor(torch::zeros({1, 2}, at::kLong), ones({2}), {4});
  auto parameter = p;
  parameter.mutable_grad() = sparse;
  CHECK_THROWS_AS(scaler.clip_grad_norm_(optimizer, -1), c10::Error);
  CHECK(parameter.grad().is_same(sparse));
}

TEST_CASE("An archive of something else is told from a scaler's", "[grad_scaler]") {
  std::stringstream stream;
  torch::save(ones({2}), stream);
  GradScaler scaler(scale_of(8));
  CHECK(message_of([&] { torch::load(scaler, stream); }).find("holds no state") !=
        std::string::npos);
  CHECK(scaler.get_scale() == 8);
}

TEST_CASE("An optimizer whose parameters have no gradient is an error that names causes",
          "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  Toy idle;
  GradScaler scaler(scale_of(8));
  toy.backward(scaler);
  const auto message = message_of([&] { scaler.step(idle.optimizer); });
  CHECK(message.find("frozen") != std::string::npos);
  scaler.step(toy.optimizer);
  scaler.update();
}

TEST_CASE("K33: bfloat16 and float64 gradients are unscaled and checked", "[grad_scaler]") {
  ON_EACH_DEVICE();
  for (const auto dtype : {at::kBFloat16, at::kDouble}) {
    const auto p = ones({4}, torch::TensorOptions(dtype).requires_grad(true));
    torch::optim::SGD optimizer({p}, 1);
    GradScaler scaler(scale_of(8));
    scaler.scale(p.sum()).backward();
    CHECK(scaler.step(optimizer) == StepResult::stepped);
    CHECK(torch::equal(p.grad(), ones({4}, dtype)));
    scaler.update();
    p.mutable_grad().fill_(kInf);
    CHECK(scaler.step(optimizer) == StepResult::skipped);
  }
}

TEST_CASE("float16 gradients are refused by place and shape, nothing is changed", "[grad_scaler]") {
  ON_EACH_DEVICE();
  const auto p = ones({4}, torch::requires_grad());
  const auto half = ones({2, 3}, torch::TensorOptions(at::kHalf).requires_grad(true));
  torch::optim::SGD optimizer({p, half}, 1);
  GradScaler scaler(scale_of(8));
  scaler.scale(p.sum() + half.to(at::kFloat).sum()).backward();
  const auto message = message_of([&] { scaler.unscale_(optimizer); });
  CHECK(message.find("FP16") != std::string::npos);
  CHECK(message.find("parameter 1 of group 0, shape [2, 3]") != std::string::npos);
  CHECK(torch::equal(p.grad(), full({4}, 8.0f)));
}

TEST_CASE("Sparse gradients are unscaled by their values", "[grad_scaler]") {
  ON_EACH_DEVICE();
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  embedding->to(on_device::current());
  torch::optim::SGD optimizer(embedding->parameters(), 1);
  GradScaler scaler(scale_of(8));
  const auto before = embedding->weight.detach().clone();
  scaler.scale(embedding(indices({1, 3, 1})).sum()).backward();
  REQUIRE(embedding->weight.grad().is_sparse());
  scaler.unscale_(optimizer);
  const auto grad = embedding->weight.grad().to_dense();
  CHECK(torch::equal(grad.sum(1), on_device::tensor({0.0f, 4.0f, 0.0f, 2.0f, 0.0f})));
  CHECK(scaler.step(optimizer) == StepResult::stepped);
  CHECK(torch::allclose(before - embedding->weight.detach(), grad));
}

TEST_CASE("K34: a disabled scaler passes everything through", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto loss = toy.p.sum();
  CHECK(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(toy.optimizer);
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
  scaler.update();
  scaler.update(5.0);
  CHECK(toy.holds(0));
  CHECK(scaler.get_scale() == 1);
  CHECK(scaler.state_dict().empty());
  CHECK_FALSE(scaler.is_enabled());
}

namespace {

/// Collects the warnings of what runs while it lives.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { messages.push_back(warning.msg()); }
  std::vector<std::string> messages;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace

TEST_CASE("K35: a scaler for CUDA on a machine without CUDA is disabled", "[grad_scaler]") {
  if (torch::cuda::is_available()) {
    SKIP("CUDA is available");
  }
  const Warnings warnings;
  const GradScaler scaler(GradScalerOptions().device(torch::kCUDA));
  CHECK_FALSE(scaler.is_enabled());
  CHECK(warnings.messages.size() == 1);
}

TEST_CASE("K35: saving a scaler that misses its device warns once", "[grad_scaler]") {
  if (torch::cuda::is_available()) {
    SKIP("CUDA is available");
  }
  const GradScaler scaler(GradScalerOptions().device(torch::kCUDA));
  const Warnings warnings;
  std::stringstream archive;
  torch::save(scaler, archive);
  REQUIRE(warnings.messages.size() == 1);
  CHECK(warnings.messages[0].find("require_device(true)") != std::string::npos);
  CHECK(scaler.state_dict().empty());
  CHECK(warnings.messages.size() == 1);
}

TEST_CASE("K35: a scaler that the user disabled is saved silently", "[grad_scaler]") {
  const Warnings warnings;
  const GradScaler scaler(GradScalerOptions().device(torch::kCUDA).enabled(false));
  CHECK(scaler.state_dict().empty());
  CHECK(warnings.messages.empty());
}

TEST_CASE("K35: a missing device is an error where it is required", "[grad_scaler]") {
  const auto required = GradScalerOptions().require_device(true);
  CHECK(GradScaler(GradScalerOptions(required).device(torch::kCPU)).is_enabled());
  if (torch::cuda::is_available()) {
    SKIP("CUDA is available");
  }
  const auto message =
      message_of([&] { GradScaler scaler(GradScalerOptions(required).device(torch::kCUDA)); });
  CHECK(message.find("require_device") != std::string::npos);
  GradScaler off(GradScalerOptions(required).device(torch::kCUDA).enabled(false));
  CHECK_FALSE(off.is_enabled());
}

TEST_CASE("Options out of range are refused by name and value", "[grad_scaler]") {
  const auto refuses = [](const GradScalerOptions& options, const std::string& name) {
    const auto message = message_of([&] { GradScaler scaler(options); });
    return message.find(name) != std::string::npos && message.find("got") != std::string::npos;
  };
  for (const double value : {0.0, -1.0, kInf, kNaN, 1e39, 1e-60, 0x1p-128}) {
    CHECK(refuses(GradScalerOptions().init_scale(value), "init_scale"));
  }
  CHECK(GradScaler(GradScalerOptions().init_scale(0x1p-127)).get_scale() == 0x1p-127);
  for (const double value : {1.0, 0.5, kInf, kNaN}) {
    CHECK(refuses(GradScalerOptions().growth_factor(value), "growth_factor"));
  }
  for (const double value : {0.0, -0.5, 1.0, 2.0, kNaN}) {
    CHECK(refuses(GradScalerOptions().backoff_factor(value), "backoff_factor"));
  }
  CHECK(refuses(GradScalerOptions().growth_interval(0), "growth_interval"));

  GradScaler scaler;
  CHECK_THROWS_AS(scaler.set_growth_factor(1), c10::Error);
  CHECK_THROWS_AS(scaler.set_backoff_factor(1), c10::Error);
  CHECK_THROWS_AS(scaler.set_growth_interval(0), c10::Error);
  scaler.set_growth_factor(3);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(7);
  CHECK(scaler.get_growth_factor() == 3);
  CHECK(scaler.get_backoff_factor() == 0.25);
  CHECK(scaler.get_growth_interval() == 7);
}

TEST_CASE("K8: an interval lowered below the tracker grows at the next update", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy(0);
  GradScaler scaler(scale_of(4).growth_interval(100));
  for (int i = 0; i < 5; ++i) {
    toy.backward(scaler);
    scaler.step(toy.optimizer);
    scaler.update();
  }
  scaler.set_growth_interval(2);
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update();
  CHECK(scaler.get_scale() == 8);
}

TEST_CASE("scale keeps gradients flowing and promotes as PyTorch does", "[grad_scaler]") {
  ON_EACH_DEVICE();
  GradScaler scaler(scale_of(4));
  const auto x = ones({2}, torch::requires_grad());
  const auto scaled = scaler.scale({x.sum(), x.prod()});
  REQUIRE(scaled.size() == 2);
  CHECK(scaled[0].item<float>() == 8);
  CHECK(scaled[0].requires_grad());
  CHECK(scaler.scale(ones({1}, at::kHalf)).scalar_type() == at::kHalf);
  CHECK(scaler.scale(ones({}, at::kHalf)).scalar_type() == at::kFloat);
  CHECK(scaler.scale(ones({2}, at::kDouble)).scalar_type() == at::kDouble);
  CHECK_THROWS_AS(scaler.scale(torch::Tensor()), c10::Error);
}

TEST_CASE("update with a value sets the scale and ends the iteration", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler scaler(scale_of(8));
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update(32.0);
  CHECK(scaler.get_scale() == 32);
  CHECK(scaler.get_growth_tracker() == 0);
  toy.backward(scaler);
  scaler.step(toy.optimizer);
  scaler.update(full({1}, 64.0f));
  CHECK(scaler.get_scale() == 64);
  CHECK_THROWS_AS(scaler.update(ones({2})), c10::Error);
  CHECK_THROWS_AS(scaler.update(ones({}, torch::requires_grad())), c10::Error);
  CHECK_THROWS_AS(scaler.update(ones({}, at::kMeta)), c10::Error);
  CHECK(scaler.get_scale() == 64);
}

TEST_CASE("A scaler with a device has its state at once", "[grad_scaler]") {
  ON_EACH_DEVICE();
  GradScaler scaler(scale_of(4).device(on_device::current()));
  Toy toy;
  toy.p.mutable_grad() = full({4}, 4.0f);
  CHECK(scaler.step(toy.optimizer) == StepResult::stepped);
  CHECK(toy.holds(0));
}

TEST_CASE("Scalers can be moved, state goes along", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Toy toy;
  GradScaler first(scale_of(8));
  toy.backward(first);
  first.unscale_(toy.optimizer);
  GradScaler second = std::move(first);
  CHECK_THROWS_AS(second.unscale_(toy.optimizer), c10::Error);
  second.step(toy.optimizer);
  second.update();
  CHECK(toy.holds(0));
}

namespace {

/// A small network trained under autocast, with an overflow in step 4.
struct Run {
  Run() {
    torch::manual_seed(3);
    model = torch::nn::Linear(4, 3);
    model->to(on_device::current());
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
  }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      torch::manual_seed(100 + step);
      const auto x = on_device::randn({8, 4});
      optimizer->zero_grad();
      torch::Tensor loss;
      {
        torchamp::AutocastGuard autocast(on_device::current().type());
        loss = model(x).to(at::kFloat).pow(2).sum() * (step == 4 ? kInf : 1.0);
      }
      scaler.scale(loss).backward();
      scaler.step(*optimizer);
      scaler.update();
    }
  }

  torch::nn::Linear model{nullptr};
  std::unique_ptr<torch::optim::SGD> optimizer;
  GradScaler scaler{scale_of(1024).growth_interval(3)};
};

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("torchamp_test_" + name)).string();
}

}  // namespace

TEST_CASE("K54: a run that is saved and resumed is bit-identical", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Run whole;
  whole.train(0, 10);

  Run half;
  half.train(0, 5);
  std::stringstream model;
  std::stringstream scaler;
  torch::save(half.model, model);
  torch::save(half.scaler, scaler);

  Run resumed;
  resumed.scaler = GradScaler(scale_of(2));
  torch::load(resumed.model, model);
  torch::load(resumed.scaler, scaler);
  resumed.train(5, 10);
  CHECK(torch::equal(resumed.model->weight, whole.model->weight));
  CHECK(resumed.scaler.get_scale() == whole.scaler.get_scale());
  CHECK(resumed.scaler.get_growth_tracker() == whole.scaler.get_growth_tracker());
  CHECK(resumed.scaler.get_growth_interval() == 3);
}

TEST_CASE("A loaded state also fills tensors that exist already", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Run run;
  run.train(0, 3);
  GradScaler other(scale_of(2).device(on_device::current()));
  other.load_state_dict(run.scaler.state_dict());
  CHECK(other.get_scale() == run.scaler.get_scale());
  CHECK(other.get_growth_tracker() == run.scaler.get_growth_tracker());
}

TEST_CASE("K52: the state is what Python's pickle holds", "[grad_scaler]") {
  ON_EACH_DEVICE();
  Run run;
  run.train(0, 5);
  const auto bytes = torch::pickle_save(run.scaler.state_dict());
  GradScaler other;
  other.load_state_dict(torch::pickle_load(bytes).toGenericDict());
  CHECK(other.get_scale() == run.scaler.get_scale());
  CHECK(other.get_growth_tracker() == run.scaler.get_growth_tracker());
  CHECK(other.get_growth_factor() == 2);
  CHECK(other.get_backoff_factor() == 0.5);
  CHECK(other.get_growth_interval() == 3);
}

TEST_CASE("An unfit state is refused by name and changes nothing", "[grad_scaler]") {
  GradScaler scaler(scale_of(4));
  auto state = GradScaler(scale_of(16)).state_dict();
  CHECK(state.erase("growth_factor") == 1);
  CHECK(state.erase("_growth_tracker") == 1);
  CHECK(message_of([&] { scaler.load_state_dict(state); }).find("growth_factor, _growth_tracker") !=
        std::string::npos);
  state = GradScaler(scale_of(16)).state_dict();
  state.insert_or_assign("growth_interval", "many");
  CHECK(message_of([&] { scaler.load_state_dict(state); }).find("growth_interval") !=
        std::string::npos);
  const auto empty = GradScaler(GradScalerOptions().enabled(false)).state_dict();
  CHECK(message_of([&] { scaler.load_state_dict(empty); }).find("disabled") != std::string::npos);
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("A state with a value out of range is refused by name and changes nothing",
          "[grad_scaler]") {
  const std::vector<std::pair<std::string, c10::IValue>> unfit{
      {"scale", 1e300},        {"growth_factor", 1.0},  {"growth_factor", kNaN},
      {"backoff_factor", 7.0}, {"backoff_factor", 0.0}, {"_growth_tracker", int64_t{1} << 40}};
  for (const bool lazy : {true, false}) {
    for (const auto& [key, value] : unfit) {
      GradScaler scaler(scale_of(4).growth_factor(3));
      if (!lazy) {
        (void)scaler.scale(ones({}));
      }
      auto state = GradScaler(scale_of(16)).state_dict();
      state.insert_or_assign(key, value);
      INFO(key << " " << value << (lazy ? ", before" : ", after") << " the first scale()");
      CHECK(says([&] { scaler.load_state_dict(state); }, key));
      CHECK(scaler.get_scale() == 4);
      CHECK(scaler.get_growth_factor() == 3);
      CHECK(scaler.get_growth_tracker() == 0);
      CHECK(scaler.scale(ones({})).item<float>() == 4);
    }
  }
}

TEST_CASE("An interval of 0, which Python's state may hold, never grows", "[grad_scaler]") {
  Toy toy;
  GradScaler scaler(scale_of(4).growth_interval(1));
  auto state = scaler.state_dict();
  state.insert_or_assign("growth_interval", int64_t{0});
  scaler.load_state_dict(state);
  for (int step = 0; step < 3; ++step) {
    toy.backward(scaler);
    scaler.step(toy.optimizer);
    scaler.update();
  }
  CHECK(scaler.get_scale() == 4);
}

TEST_CASE("A file that is no scaler's archive is refused", "[grad_scaler]") {
  const auto path = temporary("not_a_scaler.pt");
  torch::save(ones({2}), path);
  GradScaler scaler(scale_of(4));
  CHECK_THROWS_AS(torch::load(scaler, path), c10::Error);
  CHECK(scaler.get_scale() == 4);
  std::filesystem::remove(path);
}
