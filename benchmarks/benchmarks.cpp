// Operators, guard and scaler from C++, beside stock and the limit.
//
// In a comparison the contenders are called in turn, each call timed by itself: what else happens
// on the machine happens to all of them. Counters are medians in microseconds; `x_stock` and
// `x_pass` are the medians over the rounds of stock's time / ours and ours / the limit's.

#include <ATen/Parallel.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <benchmark/benchmark.h>
#include <time.h>
#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "lists.h"
#include "pass.h"

namespace torchamp::bench {

namespace {

// --- comparisons ---

struct Contender {
  std::string name;
  std::function<void()> call;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

double ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    ratios.push_back(numerators[i] / denominators[i]);
  }
  return median(ratios);
}

/// Seconds of the wall clock or, for what runs on this thread only, of its own processor time: then
/// other programs on the machine do not count.
double now(bool this_thread_only) {
  timespec time{};
  clock_gettime(this_thread_only ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double microseconds(const std::function<void()>& call, int threads) {
  const double start = now(threads == 1);
  call();
  return 1e6 * (now(threads == 1) - start);
}

/// The first contender is torchamp.
void compare(benchmark::State& state, int threads, const std::vector<Contender>& contenders) {
  const std::size_t count = contenders.size();
  std::vector<std::vector<double>> times(count);
  for (const Contender& contender : contenders) {
    contender.call();
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 generator(1);
  for (auto _ : state) {
    std::shuffle(order.begin(), order.end(), generator);  // nobody always follows the same one
    for (const std::size_t next : order) {
      times[next].push_back(microseconds(contenders[next].call, threads));
    }
    state.SetIterationTime(times[0].back() * 1e-6);
  }
  double best_stock = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& name = contenders[i].name;
    state.counters[name + "_us"] = median(times[i]);
    state.counters[name + "_min_us"] = quantile(times[i], 0);
    if (name == "pass") {
      state.counters["x_pass"] = ratio(times[0], times[i]);
    } else if (name.starts_with("stock")) {
      const double gain = ratio(times[i], times[0]);
      best_stock =
          best_stock == 0 ? gain : std::min(best_stock, gain);  // the faster of stock's ways
    }
  }
  if (best_stock > 0) {
    state.counters["x_stock"] = best_stock;
  }
  state.counters["spread"] = (quantile(times[0], 0.9) - quantile(times[0], 0.1)) / median(times[0]);
}

// --- lists of gradients ---

/// Gradients, and a flat buffer of as many bytes. Calls double and halve the list, and the buffer, in
/// turn, so that values stay what they are.
///
/// Large gradients are views of the buffer, as in DDP: where memory lies matters by a tenth and more,
/// and the limit must not be another memory's. Small ones, whose own cost counts, are allocated one
/// by one.
struct Job {
  std::vector<at::Tensor> grads;
  at::Tensor found_inf = torch::zeros({});
  at::Tensor half = torch::tensor(0.5f);
  at::Tensor two = torch::tensor(2.0f);
  at::Tensor flat;
  bool list_doubled = false;
  bool flat_doubled = false;

  Job(const List& list, at::ScalarType dtype) {
    const auto size = static_cast<int64_t>(c10::elementSize(dtype));
    const auto aligned = [size](int64_t numel) { return (numel * size + 63) / 64 * 64; };
    int64_t bytes = 0;
    for (const Shape& shape : list.shapes) {
      bytes += aligned(c10::multiply_integers(shape));
    }
    flat = torch::ones({bytes / 4});
    const bool views = bytes / static_cast<int64_t>(list.shapes.size()) > (1 << 16);
    const at::Tensor whole = flat.view(dtype);
    int64_t offset = 0;
    for (const Shape& shape : list.shapes) {
      const int64_t numel = c10::multiply_integers(shape);
      grads.push_back(views ? whole.narrow(0, offset / size, numel).view(shape)
                            : torch::empty(shape, dtype));
      grads.back().fill_(1.5);
      offset += aligned(numel);
    }
  }

  const at::Tensor& next_inverse() { return (list_doubled = !list_doubled) ? two : half; }
  const at::Tensor& next_scale() { return (list_doubled = !list_doubled) ? half : two; }
  float next_factor() { return (flat_doubled = !flat_doubled) ? 2.0f : 0.5f; }
};

void unscale(benchmark::State& state, const List& list, at::ScalarType dtype, int threads) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(threads);
  Job job(list, dtype);
  std::vector<Contender> contenders{
      {"torchamp", [&] { unscale_(job.grads, job.found_inf, job.next_scale()); }},
      {"pass",
       [&] {
         pass_scale(job.flat.data_ptr<float>(), job.flat.numel(), job.next_factor(), threads);
       }},
      {"mul_", [&] { job.flat.mul_(job.next_factor()); }}};
  if (!at::isComplexType(dtype)) {
    contenders.push_back({"stock", [&] {
                            at::_amp_foreach_non_finite_check_and_unscale_(job.grads, job.found_inf,
                                                                           job.next_inverse());
                          }});
  }
  compare(state, threads, contenders);
  TORCH_CHECK(job.found_inf.item<float>() == 0);
}

/// Python's torch.nn.utils.clip_grad_norm_, which works on whole lists.
void clip_grad_norm_foreach(at::TensorList grads, double max_norm) {
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, 2.0)), 2.0);
  at::_foreach_mul_(grads, (max_norm / (norm + 1e-6)).clamp_max(1.0));
}

void unscale_and_clip(benchmark::State& state, const List& list, int threads) {
  const at::NoGradGuard no_grad;
  at::set_num_threads(threads);
  Job job(list, torch::kFloat32);
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& grad : job.grads) {
    parameters.push_back(torch::empty_like(grad));
    parameters.back().mutable_grad() = grad;
  }
  const double max_norm = 1e9;
  const auto stock_unscale = [&] {
    at::_amp_foreach_non_finite_check_and_unscale_(job.grads, job.found_inf, job.next_inverse());
  };
  compare(
      state, threads,
      {{"torchamp",
        [&] { torchamp::clip_grad_norm_(job.grads, job.found_inf, job.next_scale(), max_norm); }},
       {"pass",
        [&] {
          float* data = job.flat.data_ptr<float>();
          benchmark::DoNotOptimize(pass_sum_squares(data, job.flat.numel(), threads));
          pass_scale(data, job.flat.numel(), job.next_factor(), threads);
        }},
       {"stock_cpp",
        [&] {
          stock_unscale();
          torch::nn::utils::clip_grad_norm_(parameters, max_norm);
        }},
       {"stock_foreach", [&] {
          stock_unscale();
          clip_grad_norm_foreach(job.grads, max_norm);
        }}});
  TORCH_CHECK(job.found_inf.item<float>() == 0);
}

// --- guard and scaler ---

void autocast_guard(benchmark::State& state) {
  for (auto _ : state) {
    AutocastGuard autocast(torch::kCPU);
    benchmark::DoNotOptimize(&autocast);
  }
}

/// An optimizer whose step does nothing: what remains is the scaler's own time.
class Idle : public torch::optim::Optimizer {
 public:
  explicit Idle(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  using Optimizer::step;
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

void scaler_iteration(benchmark::State& state) {
  at::set_num_threads(1);
  std::vector<at::Tensor> parameters;
  for (int64_t i = 0; i < state.range(0); ++i) {
    parameters.push_back(torch::ones({16}, torch::requires_grad()));
    parameters.back().mutable_grad() = torch::ones({16});
  }
  Idle optimizer(parameters);
  const at::Tensor loss = torch::ones({}, torch::requires_grad());
  GradScaler scaler(GradScalerOptions().init_scale(1.0).growth_interval(1 << 30));
  for (auto _ : state) {
    benchmark::DoNotOptimize(scaler.scale(loss));
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    scaler.update();
  }
}

// --- registration ---

int rounds(const List& list) {
  int64_t elements = 0;
  for (const Shape& shape : list.shapes) {
    elements += c10::multiply_integers(shape);
  }
  return elements > 50'000'000 ? 7 : elements > 5'000'000 ? 15 : 101;
}

void register_all() {
  const std::vector<std::pair<std::string, at::ScalarType>> dtypes{
      {"float32", torch::kFloat32},
      {"bfloat16", torch::kBFloat16},
      {"float16", torch::kFloat16},
      {"float64", torch::kFloat64},
      {"complex64", torch::kComplexFloat}};
  const auto add = [](const std::string& name, int iterations, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)
        ->UseManualTime()
        ->Iterations(iterations)
        ->Unit(benchmark::kMicrosecond);
  };
  for (const List& list : lists()) {
    for (const int threads : {1, 2}) {
      const std::string where = "/" + list.name + "/threads:" + std::to_string(threads);
      for (const auto& [name, dtype] : dtypes) {
        add("unscale/" + name + where, rounds(list),
            [=, dtype = dtype](benchmark::State& state) { unscale(state, list, dtype, threads); });
      }
      add("unscale_and_clip/float32" + where, rounds(list),
          [=](benchmark::State& state) { unscale_and_clip(state, list, threads); });
    }
  }
  benchmark::RegisterBenchmark("autocast_enter_exit", autocast_guard);
  benchmark::RegisterBenchmark("scaler_iteration", scaler_iteration)
      ->ArgName("parameters")
      ->Arg(4)
      ->Arg(161)
      ->Arg(1000);
}

}  // namespace

}  // namespace torchamp::bench

int main(int argc, char** argv) {
  torchamp::bench::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
}
