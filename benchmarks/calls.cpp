// torchamp_bench_calls torchamp|stock|torchamp_clip|stock_clip TENSORS NUMEL CALLS
//
// Makes so many calls on a list of so many float32 tensors of so many elements, in one function, whose
// instructions callgrind.sh counts.

#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {

[[gnu::noinline]] void run_calls(const std::function<void()>& call, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    call();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: " << argv[0]
              << " torchamp|stock|torchamp_clip|stock_clip TENSORS NUMEL CALLS\n";
    return 2;
  }
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  std::vector<at::Tensor> grads;
  for (int64_t i = 0; i < std::atoll(argv[2]); ++i) {
    grads.push_back(torch::ones({std::atoll(argv[3])}));
  }
  at::Tensor found_inf = torch::zeros({});
  const at::Tensor scale = torch::tensor(2.0f);
  const auto stock_unscale = [&] {
    at::_amp_foreach_non_finite_check_and_unscale_(grads, found_inf, scale);
  };
  const std::map<std::string, std::function<void()>> calls{
      {"torchamp", [&] { torchamp::unscale_(grads, found_inf, scale); }},
      {"stock", stock_unscale},
      {"torchamp_clip", [&] { torchamp::clip_grad_norm_(grads, found_inf, scale, 1e9); }},
      {"stock_clip", [&] {
         stock_unscale();
         const at::Tensor norm =
             at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, 2.0)), 2.0);
         at::_foreach_mul_(grads, (1e9 / (norm + 1e-6)).clamp_max(1.0));
       }}};
  calls.at(argv[1])();  // what only the first call does is not counted
  run_calls(calls.at(argv[1]), std::atoll(argv[4]));
}
