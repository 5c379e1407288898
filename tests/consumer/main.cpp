// One step and one overflow with nothing but the installed package; exits with 0 if all is right.

#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <iostream>
#include <limits>

namespace {

bool all_passed = true;

void check(bool passed, const char* what) {
  if (!passed) {
    std::cerr << "wrong: " << what << '\n';
    all_passed = false;
  }
}

}  // namespace

int main() {
  torch::nn::Linear model(4, 1);
  {
    torch::NoGradGuard no_grad;
    model->weight.fill_(1);
  }
  torch::optim::SGD optimizer(model->parameters(), /*lr=*/0.5);
  torchamp::GradScaler scaler(torchamp::GradScalerOptions().init_scale(1024));

  const auto step = [&](double factor) {
    optimizer.zero_grad();
    torch::Tensor output;
    {
      torchamp::AutocastGuard autocast(torch::kCPU,
                                       torchamp::AutocastOptions().dtype(torch::kHalf));
      output = model->forward(torch::ones({1, 4}));
    }
    check(output.scalar_type() == torch::kHalf, "the dtype inside the region");
    scaler.scale(output.to(torch::kFloat).sum() * factor).backward();
    const auto result = scaler.step(optimizer);
    scaler.update();
    return result;
  };

  check(step(1) == torchamp::StepResult::stepped, "the result of a step");
  check(torch::equal(model->weight, torch::full({1, 4}, 0.5)), "the weights after a step");
  check(step(std::numeric_limits<double>::infinity()) == torchamp::StepResult::skipped,
        "the result of an overflow");
  check(torch::equal(model->weight, torch::full({1, 4}, 0.5)), "the weights after an overflow");
  check(scaler.get_scale() == 512, "the scale after an overflow");
  return all_passed ? 0 : 1;
}
