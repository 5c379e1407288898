// Trains a three-layer perceptron on MNIST in mixed precision (as mnist.py).

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>
#include <torchamp/torchamp.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "common/args.h"
#include "common/names.h"
#include "idx.h"
#include "report.h"

constexpr int64_t kBatchSize = 64;
constexpr int64_t kTestBatchSize = 1000;

struct Options {
  std::string device_name = "cpu";
  std::string precision = "fp16";
  bool logits = false;
  int64_t epochs = 10;
  std::string data = TORCHAMP_EXAMPLES_DATA_DIR "/mnist";
  uint64_t seed = 0;
  int threads = 0;
  std::string csv;
  double init_scale = 65536.0;
  int64_t growth_interval = 2000;

  [[nodiscard]] torch::Device device() const { return examples::device_of(device_name); }
  [[nodiscard]] torchamp::AutocastOptions autocast() const {
    return torchamp::AutocastOptions()
        .dtype(examples::dtype_of(precision))
        .enabled(precision != "fp32");
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool logits) : logits(logits) {}

  bool logits;
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(784, 256));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(256, 128));
  torch::nn::Linear fc3 = register_module("fc3", torch::nn::Linear(128, 10));

  torch::Tensor forward(torch::Tensor x) {
    x = x.view({-1, 784});
    x = torch::relu(fc1->forward(x));
    x = torch::relu(fc2->forward(x));
    x = fc3->forward(x);
    // cross_entropy takes a softmax by itself; the one here is the tutorial's, and redundant.
    return logits ? x : torch::softmax(x, 1);
  }
};
TORCH_MODULE(Net);

torch::Tensor normalise(const torch::Tensor& images, torch::Device device) {
  return images.to(device, torch::kFloat).div_(255).sub_(0.1307).div_(0.3081);
}

std::string progress_line(int64_t epoch, int64_t done, int64_t size, double percent, double loss) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "Train Epoch: %lld [%lld/%lld (%.0f%%)]\tLoss: %.6f",
                static_cast<long long>(epoch), static_cast<long long>(done),
                static_cast<long long>(size), percent, loss);
  return text.data();
}

struct Step {
  torch::Tensor loss;
  bool skipped;
};

Step train_step(Net& model, torch::optim::Optimizer& optimizer, torchamp::GradScaler& scaler,
                const torch::Tensor& images, const torch::Tensor& labels, const Options& options) {
  torch::Tensor loss;
  {
    torchamp::AutocastGuard autocast(images.device().type(), options.autocast());
    const torch::Tensor output = model->forward(images);
    loss = torch::nn::functional::cross_entropy(output, labels);
  }

  optimizer.zero_grad();
  scaler.scale(loss).backward();
  const torchamp::StepResult result = scaler.step(optimizer);
  scaler.update();
  return {.loss = loss, .skipped = result == torchamp::StepResult::skipped};
}

/// Trains for all epochs and returns how many steps the scaler skipped.
int64_t train(Net& model, const examples::Dataset& data, const Options& options) {
  const torch::Device device = options.device();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  // Only float16 has so small a range that gradients need scaling.
  torchamp::GradScaler scaler(torchamp::GradScalerOptions()
                                  .device(device)
                                  .init_scale(options.init_scale)
                                  .growth_interval(options.growth_interval)
                                  .enabled(options.precision == "fp16"));
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);

  const int64_t size = data.images.size(0);
  const int64_t batches = (size + kBatchSize - 1) / kBatchSize;
  examples::Progress progress(options.epochs * batches);
  examples::RunLog log(options.csv);
  int64_t skipped_steps = 0;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(size, generator);
    for (int64_t batch = 0; batch < batches; ++batch) {
      const torch::Tensor chosen = order.slice(0, batch * kBatchSize, (batch + 1) * kBatchSize);
      const torch::Tensor images = normalise(data.images.index({chosen}), device);
      const torch::Tensor labels = data.labels.index({chosen}).to(device);

      const double scale = log.is_open() ? scaler.get_scale() : 0;  // reading it waits for the GPU
      const auto [loss, skipped] = train_step(model, optimizer, scaler, images, labels, options);

      skipped_steps += skipped ? 1 : 0;
      if (log.is_open()) {
        log.row((epoch * batches) + batch, loss.item<double>(), scale, skipped);
      }
      if (batch % 100 == 0) {
        progress.line(
            progress_line(epoch, batch * chosen.size(0), size,
                          100.0 * static_cast<double>(batch) / static_cast<double>(batches),
                          loss.item<double>()));
      }
      progress.advance();
    }
  }
  progress.clear();
  return skipped_steps;
}

int64_t count_correct(Net& model, const examples::Dataset& data, const Options& options) {
  const torch::Device device = options.device();
  const torch::NoGradGuard no_grad;
  torchamp::AutocastGuard autocast(device.type(), options.autocast());
  int64_t correct = 0;
  for (int64_t first = 0; first < data.images.size(0); first += kTestBatchSize) {
    const torch::Tensor images = data.images.slice(0, first, first + kTestBatchSize);
    const torch::Tensor labels = data.labels.slice(0, first, first + kTestBatchSize).to(device);
    const torch::Tensor predicted = model->forward(normalise(images, device)).argmax(1);
    correct += (predicted == labels).sum().item<int64_t>();
  }
  return correct;
}

void run(const Options& options) {
  const torch::Device device = options.device();
  if (options.threads > 0) {
    torch::set_num_threads(options.threads);
  }
  const examples::Dataset train_data = examples::load_split(options.data, "train");
  const examples::Dataset test_data = examples::load_split(options.data, "t10k");

  torch::manual_seed(options.seed);
  Net model(options.logits);
  model->to(device);
  const auto start = std::chrono::steady_clock::now();
  const int64_t skipped_steps = train(model, train_data, options);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;

  const int64_t correct = count_correct(model, test_data, options);
  const int64_t size = test_data.images.size(0);
  std::printf("Skipped steps: %lld\n", static_cast<long long>(skipped_steps));
  std::printf("Training time: %.2f s\n", time.count());
  std::printf("Test accuracy: %.4f (%lld/%lld)\n",
              static_cast<double>(correct) / static_cast<double>(size),
              static_cast<long long>(correct), static_cast<long long>(size));
}

Options parse_options(int argc, char** argv) {
  Options options;
  examples::ArgParser parser("Trains a three-layer perceptron on MNIST in mixed precision.");
  parser.choice("--device", &options.device_name, {"cpu", "cuda"}, "where to train");
  parser.choice("--precision", &options.precision, examples::precisions(), "dtype");
  parser.flag("--logits", &options.logits, "leave out the redundant softmax");
  parser.number<int64_t>("--epochs", &options.epochs, 1, "passes over the data");
  parser.text("--data", &options.data, "folder with the IDX files");
  parser.number<uint64_t>("--seed", &options.seed, 0, "of parameters and data order");
  parser.number("--threads", &options.threads, 0, "0: torch's own choice");
  parser.text("--csv", &options.csv, "write iteration, loss, scale, skipped");
  parser.number("--init-scale", &options.init_scale, 1.0, "first scale");
  parser.number<int64_t>("--growth-interval", &options.growth_interval, 1,
                         "steps before the scale doubles");
  parser.parse(argc, argv);
  return options;
}

int main(int argc, char** argv) {
  return examples::run(argv[0], [&] { run(parse_options(argc, argv)); });
}
