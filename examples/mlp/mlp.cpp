// One training step of a small multi-layer perceptron in mixed precision (as mlp.py).

#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <cstdio>
#include <string>

#include "common/args.h"
#include "common/names.h"

struct MLPImpl : torch::nn::Module {
  torch::nn::Linear linear1 = register_module("linear1", torch::nn::Linear(10, 100));
  torch::nn::Linear linear2 = register_module("linear2", torch::nn::Linear(100, 10));

  torch::Tensor forward(const torch::Tensor& x) {
    return linear2->forward(torch::relu(linear1->forward(x)));
  }
};
TORCH_MODULE(MLP);

void train(torch::Device device, torch::Dtype dtype) {
  torch::manual_seed(0);
  MLP model;
  model->to(device);
  torch::nn::CrossEntropyLoss criterion;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));

  // Only float16 has so small a range that gradients need scaling. A disabled scaler passes
  // everything through, so the loop below is the same for every precision.
  torchamp::GradScaler scaler(
      torchamp::GradScalerOptions().device(device).enabled(dtype == torch::kHalf));

  const torch::Tensor inputs = torch::randn({100, 10}).to(device);
  const torch::Tensor targets = torch::randint(0, 10, {100}, torch::kLong).to(device);

  for (int epoch = 0; epoch < 1; ++epoch) {
    std::printf("inputs dtype: %s\n", examples::name(inputs.scalar_type()).c_str());
    torch::Tensor loss;
    {
      torchamp::AutocastGuard autocast(
          device.type(), torchamp::AutocastOptions().dtype(dtype).enabled(dtype != torch::kFloat));
      const torch::Tensor outputs = model->forward(inputs);
      std::printf("outputs dtype: %s\n", examples::name(outputs.scalar_type()).c_str());
      loss = criterion(outputs, targets);
      std::printf("loss dtype: %s\n", examples::name(loss.scalar_type()).c_str());
    }

    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    std::printf("Epoch %d, Loss: %.4f\n", epoch + 1, loss.item<double>());
  }
}

int main(int argc, char** argv) {
  return examples::run(argv[0], [&] {
    std::string device = "cpu";
    std::string precision = "fp16";
    examples::ArgParser parser("One training step of a small multi-layer perceptron.");
    parser.choice("--device", &device, {"cpu", "cuda"});
    parser.choice("--precision", &precision, examples::precisions());
    parser.parse(argc, argv);
    train(examples::device_of(device), examples::dtype_of(precision));
  });
}
