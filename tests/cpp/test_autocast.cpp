#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "catch.h"

using torchamp::AutocastGuard;
using torchamp::AutocastOptions;
using torchamp::AutocastState;

namespace {

at::ScalarType mm_dtype() {
  const auto a = torch::ones({2, 2});
  return torch::mm(a, a).scalar_type();
}

/// Everything that a guard must put back.
struct Settings {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  int nesting = nesting_now();

  static int nesting_now() {
    at::autocast::increment_nesting();
    return at::autocast::decrement_nesting();
  }
  bool operator==(const Settings&) const = default;
};

AutocastOptions with(at::ScalarType dtype) { return AutocastOptions().dtype(dtype); }

}  // namespace

TEST_CASE("A region runs matrix products in its dtype and restores the settings", "[autocast]") {
  const Settings before;
  {
    AutocastGuard autocast(at::kCPU);
    CHECK(mm_dtype() == at::kBFloat16);
    CHECK(torch::ones({2}).sum().scalar_type() == at::kFloat);
  }
  {
    AutocastGuard autocast(at::kCPU, with(at::kHalf).cache_enabled(false));
    CHECK(mm_dtype() == at::kHalf);
    CHECK_FALSE(at::autocast::is_autocast_cache_enabled());
  }
  CHECK(mm_dtype() == at::kFloat);
  CHECK(Settings() == before);
}

TEST_CASE("The dtype defaults to the thread's current one", "[autocast]") {
  AutocastGuard outer(at::kCPU, with(at::kHalf));
  AutocastGuard inner(at::kCPU);
  CHECK(mm_dtype() == at::kHalf);
}

TEST_CASE("K62: regions nest, with other dtypes and switched off in between", "[autocast]") {
  const Settings before;
  {
    AutocastGuard bf16(at::kCPU, with(at::kBFloat16));
    CHECK(mm_dtype() == at::kBFloat16);
    {
      AutocastGuard off(at::kCPU, AutocastOptions().enabled(false));
      CHECK(mm_dtype() == at::kFloat);
      {
        AutocastGuard fp16(at::kCPU, with(at::kHalf));
        CHECK(mm_dtype() == at::kHalf);
      }
      CHECK(mm_dtype() == at::kFloat);
    }
    CHECK(mm_dtype() == at::kBFloat16);
  }
  CHECK(Settings() == before);
}

TEST_CASE("K62: end() leaves the region once, the destructor does nothing more", "[autocast]") {
  const Settings before;
  AutocastGuard outer(at::kCPU, with(at::kHalf));
  const Settings in_outer;
  {
    AutocastGuard inner(at::kCPU, with(at::kBFloat16));
    inner.end();
    CHECK(Settings() == in_outer);
    inner.end();
    CHECK(Settings() == in_outer);
  }
  CHECK(Settings() == in_outer);
  outer.end();
  CHECK(Settings() == before);
}

TEST_CASE("K61: an exception leaves no trace in the settings", "[autocast]") {
  const Settings before;
  const auto throws_inside = [] {
    AutocastGuard outer(at::kCPU, with(at::kHalf).cache_enabled(false));
    AutocastGuard inner(at::kCPU, with(at::kBFloat16));
    torch::mm(torch::ones({2, 3}), torch::ones({2, 3}));  // shapes do not fit
  };
  CHECK_THROWS_AS(throws_inside(), c10::Error);
  CHECK(Settings() == before);
}

TEST_CASE("A nested region of another dtype does not get the outer one's cached cast",
          "[autocast]") {
  const auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto x = torch::ones({2, 2});
  AutocastGuard outer(at::kCPU, with(at::kBFloat16));
  CHECK(torch::mm(x, weight).scalar_type() == at::kBFloat16);
  {
    AutocastGuard inner(at::kCPU, with(at::kHalf));
    CHECK(torch::mm(x, weight).scalar_type() == at::kHalf);
  }
  CHECK(torch::mm(x, weight).scalar_type() == at::kBFloat16);
}

TEST_CASE("K56: a region for each forward sees the weights of each step", "[autocast]") {
  const auto losses = [](const auto& forward, const torch::Tensor& weight) {
    torch::optim::SGD optimizer({weight}, 0.1);
    std::vector<double> values;
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        AutocastGuard autocast(at::kCPU);
        loss = forward(weight).to(at::kFloat).sum();
      }
      loss.backward();
      optimizer.step();
      values.push_back(loss.item<double>());
    }
    return values;
  };
  const auto conv = [](const torch::Tensor& w) {
    return torch::conv2d(torch::ones({1, 1, 2, 2}), w.view({1, 1, 1, 1}));
  };
  const auto conv_leaf = [](const torch::Tensor& w) {
    return torch::conv2d(torch::ones({1, 1, 2, 2}), w);
  };
  const auto linear = [](const torch::Tensor& w) { return at::linear(torch::ones({1, 2}), w); };
  const std::vector<std::vector<double>> all{
      losses(conv, torch::ones({1}, torch::requires_grad())),
      losses(conv_leaf, torch::ones({1, 1, 1, 1}, torch::requires_grad())),
      losses(linear, torch::ones({1, 2}, torch::requires_grad()))};
  for (const auto& values : all) {
    CHECK(values[1] < values[0]);
    CHECK(values[2] < values[1]);
  }
}

TEST_CASE("K58: refresh() makes a replaced weight count", "[autocast]") {
  auto weight = torch::ones({1, 1, 1, 1}, torch::requires_grad());
  const auto x = torch::ones({1, 1, 1, 1});
  AutocastGuard autocast(at::kCPU);
  const auto value = [&] { return torch::conv2d(x, weight).item<float>(); };
  CHECK(value() == 1.0f);
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(3);
  }
  autocast.refresh();
  CHECK(value() == 3.0f);
  weight.set_data(torch::full({1, 1, 1, 1}, 5.0f));
  autocast.refresh();
  CHECK(value() == 5.0f);
}

TEST_CASE("K60: a cast that a no_grad forward made serves a forward with gradients", "[autocast]") {
  auto weight = torch::ones({2, 2}, torch::requires_grad());
  torch::Tensor loss;
  {
    AutocastGuard autocast(at::kCPU);
    {
      const torch::NoGradGuard no_grad;
      torch::mm(torch::ones({2, 2}), weight);
    }
    loss = torch::mm(torch::ones({2, 2}), weight).to(at::kFloat).sum();
  }
  loss.backward();
  REQUIRE(weight.grad().defined());
  CHECK(torch::equal(weight.grad(), torch::full({2, 2}, 2.0f)));
}

TEST_CASE("K65: a worker thread gets autocast by the captured state only", "[autocast]") {
  AutocastGuard autocast(at::kCPU, with(at::kHalf));
  const auto state = AutocastState::capture();
  at::ScalarType without{};
  at::ScalarType with_state{};
  at::ScalarType after{};
  std::thread([&] {
    without = mm_dtype();
    {
      AutocastGuard in_worker(state);
      with_state = mm_dtype();
    }
    after = mm_dtype();
  }).join();
  CHECK(without == at::kFloat);
  CHECK(with_state == at::kHalf);
  CHECK(after == at::kFloat);
}

TEST_CASE("K65: threads with different dtypes do not disturb each other", "[autocast]") {
  std::atomic<int> wrong{0};
  const auto work = [&wrong](at::ScalarType dtype) {
    const auto weight = torch::ones({2, 2}, torch::requires_grad());
    for (int i = 0; i < 1000; ++i) {
      AutocastGuard autocast(at::kCPU, with(dtype));
      wrong += torch::mm(torch::ones({2, 2}), weight).scalar_type() != dtype;
    }
  };
  std::thread other(work, at::kHalf);
  work(at::kBFloat16);
  other.join();
  CHECK(wrong == 0);
}

TEST_CASE("A captured state carries the setting of every device and of the cache", "[autocast]") {
  const Settings before;
  {
    AutocastGuard autocast(at::kCPU, with(at::kHalf).cache_enabled(false));
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
    const auto state = AutocastState::capture();
    at::autocast::set_autocast_dtype(at::kCUDA, at::kHalf);
    autocast.end();
    AutocastGuard again(state);
    CHECK(mm_dtype() == at::kHalf);
    CHECK_FALSE(at::autocast::is_autocast_cache_enabled());
    CHECK(at::autocast::get_autocast_dtype(at::kCUDA) == at::kBFloat16);
  }
  CHECK(at::autocast::get_autocast_dtype(at::kCUDA) == at::kHalf);
  CHECK(Settings() == before);
}

TEST_CASE("K68: float64 inputs and in-place results keep their dtype", "[autocast]") {
  AutocastGuard autocast(at::kCPU);
  const auto a = torch::ones({2, 2}, at::kDouble);
  CHECK(torch::mm(a, a).scalar_type() == at::kDouble);
  auto out = torch::zeros({2, 2});
  out.add_(torch::ones({2, 2}, at::kBFloat16));
  CHECK(out.scalar_type() == at::kFloat);
  CHECK_THROWS_AS(
      torch::zeros({2, 2}).addmm_(torch::ones({2, 2}, at::kBFloat16), torch::ones({2, 2})),
      c10::Error);
}

TEST_CASE("DisableAutocastGuard switches autocast off inside a region", "[autocast]") {
  AutocastGuard autocast(at::kCPU);
  {
    torchamp::DisableAutocastGuard disabled;
    CHECK(mm_dtype() == at::kFloat);
  }
  CHECK(mm_dtype() == at::kBFloat16);
}

TEST_CASE("A device type without autocast is an error that names it", "[autocast]") {
  const Settings before;
  CHECK_THROWS_AS(AutocastGuard(at::kMeta), c10::Error);
  CHECK(Settings() == before);
}

TEST_CASE("A dtype that the device does not know gives a region without casts", "[autocast]") {
  AutocastGuard autocast(at::kCPU, with(at::kDouble));
  CHECK(mm_dtype() == at::kFloat);
}

TEST_CASE("K71: a CUDA region on a machine without CUDA does nothing", "[autocast]") {
  if (torch::cuda::is_available()) {
    SKIP("CUDA is available");
  }
  const Settings before;
  {
    AutocastGuard autocast(at::kCUDA);
    CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
    CHECK(mm_dtype() == at::kFloat);
  }
  CHECK(Settings() == before);
}

TEST_CASE("A CUDA region casts CUDA tensors to float16 and leaves CPU tensors alone",
          "[autocast]") {
  if (!torch::cuda::is_available()) {
    SKIP("CUDA is not available");
  }
  const auto on_cuda = torch::ones({8, 8}, at::kCUDA);
  AutocastGuard autocast(at::kCUDA);
  CHECK(torch::mm(on_cuda, on_cuda).scalar_type() == at::kHalf);
  CHECK(on_cuda.sum().scalar_type() == at::kFloat);
  CHECK(mm_dtype() == at::kFloat);
}
