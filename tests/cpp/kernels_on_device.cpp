#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "gradients.h"
#include "ops/cuda/clip_norm.h"
#include "ops/cuda/unscale.h"
#include "ops/cuda/update_scale.h"

// The CUDA kernels on a real device, without torch and its caching allocator: every tensor is an
// allocation of its own that ends with it, so that compute-sanitizer sees one element more, and a
// word that nobody has written. Lists and reference are those of tests/kernels.
//
// Exits with 0, 1 (something is wrong) or 77 (there is no device).

namespace {

using namespace torchamp::cuda;
using reference::Gradient;
using reference::List;
using torchamp::common::ChunkTable;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int failures = 0;

void expect(bool holds, const char* what, int round) {
  if (!holds) {
    std::printf("FAILED in round %d: %s\n", round, what);
    ++failures;
  }
}

void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
  }
}

/// Not the default stream, and one that does not wait for it: kernels must run where they are told.
cudaStream_t stream() {
  static const cudaStream_t created = [] {
    cudaStream_t side = nullptr;
    must(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return side;
  }();
  return created;
}

/// Device memory of exactly so many bytes, not initialised.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) {
    must(cudaMalloc(&memory_, bytes), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  [[nodiscard]] void* at(std::size_t offset) const {
    return static_cast<std::byte*>(memory_) + offset;
  }

  void upload(const void* from) {
    must(cudaMemcpyAsync(memory_, from, bytes_, cudaMemcpyHostToDevice, stream()), "upload");
    must(cudaStreamSynchronize(stream()), "upload");
  }
  void download(void* to) const {
    must(cudaMemcpyAsync(to, memory_, bytes_, cudaMemcpyDeviceToHost, stream()), "download");
    must(cudaStreamSynchronize(stream()), "download");
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_;
};

/// One value on the device.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(T value) : memory_(sizeof(T)) { memory_.upload(&value); }
  [[nodiscard]] T* get() const { return static_cast<T*>(memory_.at(0)); }
  [[nodiscard]] T read() const {
    T value;
    memory_.download(&value);
    return value;
  }

 private:
  DeviceMemory memory_;
};

/// A copy of a list, with the same alignments. What lies between a 16-byte boundary and a tensor that
/// starts after one is copied too, so that `same` sees what is written there.
class DeviceList {
 public:
  explicit DeviceList(const List& list) : list_(list) {
    for (const Gradient& gradient : list_) {
      const std::size_t lead = lead_of(gradient);
      const std::size_t bytes = bytes_of(gradient);
      memory_.push_back(bytes == 0 ? nullptr : std::make_unique<DeviceMemory>(lead + bytes));
      if (bytes != 0) {
        memory_.back()->upload(static_cast<const std::byte*>(gradient.data()) - lead);
      }
    }
  }

  [[nodiscard]] ChunkTable table() const {
    ChunkTable table(list_.size());
    for (std::size_t i = 0; i < list_.size(); ++i) {
      void* const data = memory_[i] ? memory_[i]->at(lead_of(list_[i])) : nullptr;
      (void)table.add(data, list_[i].numel(), list_[i].dtype());
    }
    return table;
  }

  [[nodiscard]] List read() const {
    List result = list_;
    for (std::size_t i = 0; i < list_.size(); ++i) {
      if (memory_[i]) {
        memory_[i]->download(static_cast<std::byte*>(result[i].data()) - lead_of(list_[i]));
      }
    }
    return result;
  }

 private:
  static std::size_t bytes_of(const Gradient& gradient) {
    return static_cast<std::size_t>(gradient.numel()) * torchamp::common::size_of(gradient.dtype());
  }
  static std::size_t lead_of(const Gradient& gradient) {
    return reinterpret_cast<uintptr_t>(gradient.data()) % 16;
  }

  List list_;
  std::vector<std::unique_ptr<DeviceMemory>> memory_;
};

void check_unscale(const List& list, float scale, int round) {
  const DeviceList on_device(list);
  const OnDevice<float> device_scale(scale);
  const OnDevice<float> found_inf(0.0f);
  launch_unscale(on_device.table(), InverseSource::from_scale(device_scale.get()), found_inf.get(),
                 stream());
  const auto expected = reference::unscaled(list, 1.0f / scale);
  expect(same(on_device.read(), expected.list), "unscaled gradients", round);
  expect(found_inf.read() == (expected.found_inf ? 1.0f : 0.0f), "flag of unscale", round);
}

/// Whether the clipped list is the factor times the list, up to the rounding of each type.
bool is_product(const List& got, const List& list, double factor) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::size_t size = torchamp::common::size_of(list[i].dtype());
    const double relative = size == 2 ? 0x1p-7 : 0x1p-22;
    const double absolute = size == 2 ? 0x1p-24 : 0x1p-140;
    for (int64_t j = 0; j < list[i].numel(); ++j) {
      const double expected = list[i].get(j) * factor;
      if (!(std::abs(got[i].get(j) - expected) <= std::abs(expected) * relative + absolute)) {
        return false;
      }
    }
  }
  return true;
}

void check_clip(const List& list, float scale, double max_norm, int round) {
  const DeviceList on_device(list);
  const ChunkTable table = on_device.table();
  const OnDevice<float> device_scale(scale);
  const OnDevice<float> found_inf(0.0f);
  const DeviceMemory sums(square_sum_bytes(table) + 1);
  const DeviceMemory result(sizeof(ClipFactor));
  auto* const square_sums = static_cast<SquareSum*>(sums.at(0));
  auto* const clip_result = static_cast<ClipFactor*>(result.at(0));
  const auto source = InverseSource::from_scale(device_scale.get());
  launch_grad_norm(table, source, found_inf.get(), square_sums, stream());
  launch_clip_factor(square_sums, table.num_chunks(), source, max_norm, found_inf.get(),
                     clip_result, stream());
  launch_apply_factor(table, clip_result, stream());

  ClipFactor clipped;
  result.download(&clipped);
  const bool overflow = reference::unscaled(list, 1.0f / scale).found_inf;
  expect(found_inf.read() == (overflow ? 1.0f : 0.0f), "flag of grad_norm", round);
  const List got = on_device.read();
  if (overflow) {
    expect(clipped.factor == 1.0 && same(got, list), "gradients after an overflow", round);
    return;
  }
  const auto norm = static_cast<double>(reference::norm(list, 1.0f / scale));
  expect(std::abs(clipped.norm - norm) <= 1e-6 * norm, "norm", round);
  const double factor = std::min(1.0, max_norm / (norm + 1e-6)) / scale;
  expect(std::abs(clipped.factor - factor) <= 1e-6 * factor, "factor", round);
  expect(is_product(got, list, clipped.factor), "clipped gradients", round);
}

void check_update(int count, int where, int round) {
  std::vector<std::unique_ptr<OnDevice<float>>> flags;
  std::vector<const float*> addresses;
  for (int i = 0; i < count; ++i) {
    flags.push_back(std::make_unique<OnDevice<float>>(i == where ? kInfinity : 0.0f));
    addresses.push_back(flags.back()->get());
  }
  const OnDevice<float> scale(8.0f);
  const OnDevice<int32_t> tracker(4);
  launch_update_scale(scale.get(), tracker.get(), addresses.data(), count, {2.0, 0.5, 5}, stream());
  expect(scale.read() == (where < 0 ? 16.0f : 4.0f), "scale", round);
  expect(tracker.read() == 0, "growth tracker", round);
}

/// Many tiny tensors: what one launch does not take, or only the long table.
List long_list(int count) {
  List list;
  for (int i = 0; i < count; ++i) {
    list.emplace_back(reference::kAllTypes[i % 4], i % 5);
    for (int64_t j = 0; j < i % 5; ++j) {
      list.back().set(j, 1.0 + static_cast<double>(j));
    }
  }
  return list;
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("no CUDA device");
    return 77;
  }
  std::mt19937 random(1);
  constexpr float kScales[] = {65536.0f, 1.0f, 3.0f, 0.25f};
  int round = 0;
  for (; round < 24; ++round) {
    const List list = reference::sample_list_of_kind(random, round % 8, 10);
    check_unscale(list, kScales[round % 4], round);
    check_clip(list, kScales[round % 4], round % 3 == 0 ? 1e300 : 0.5, round);
  }
  for (const int count : {168, 169, 1360, 1400}) {
    check_unscale(long_list(count), 8.0f, round);
    check_clip(long_list(count), 8.0f, 1.0, round++);
  }
  check_unscale({}, 8.0f, round);
  check_clip({}, 8.0f, 1.0, round++);
  for (const int count : {1, 33, kMaxFlags}) {
    for (const int where : {-1, 0, count - 1}) {
      check_update(count, where, round++);
    }
  }
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  std::printf("%d rounds, %d failures\n", round, failures);
  return failures == 0 ? 0 : 1;
}
