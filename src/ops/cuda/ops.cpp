#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "ops/checks.h"
#include "ops/cuda/clip_norm.h"
#include "ops/cuda/unscale.h"
#include "ops/cuda/update_scale.h"
#include "ops/gradient_list.h"

// Registers the CUDA kernels. A kernel that comes from outside of PyTorch gets neither its device
// guard nor its checks, so both are here; work goes to the device's current stream.

namespace torchamp::cuda {

namespace {

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  detail::check_unscale(grads, found_inf, scale);
  const c10::cuda::CUDAGuard device_guard(found_inf.device());
  const detail::GradientList list(grads);
  const auto* const value = scale.const_data_ptr<float>();
  launch_unscale(
      list.table(),
      scale_is_inverse ? InverseSource::from_inverse(value) : InverseSource::from_scale(value),
      found_inf.mutable_data_ptr<float>(), c10::cuda::getCurrentCUDAStream());
  list.write_back();
}

at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                           const std::optional<at::Tensor>& scale, double max_norm) {
  detail::check_clip(grads, found_inf, scale, max_norm);
  const c10::cuda::CUDAGuard device_guard(found_inf.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const detail::GradientList list(grads);
  const InverseSource source =
      scale ? InverseSource::from_scale(scale->const_data_ptr<float>()) : InverseSource::one();
  const at::Tensor sums = at::empty({static_cast<int64_t>(square_sum_bytes(list.table()))},
                                    found_inf.options().dtype(at::kByte));
  const at::Tensor result = at::empty({2}, found_inf.options().dtype(at::kDouble));
  static_assert(sizeof(ClipFactor) == 2 * sizeof(double));
  auto* const square_sums = static_cast<SquareSum*>(sums.mutable_data_ptr());
  auto* const clip_result = static_cast<ClipFactor*>(result.mutable_data_ptr());
  launch_grad_norm(list.table(), source, found_inf.mutable_data_ptr<float>(), square_sums, stream);
  launch_clip_factor(square_sums, list.table().num_chunks(), source, max_norm,
                     found_inf.const_data_ptr<float>(), clip_result, stream);
  launch_apply_factor(list.table(), clip_result, stream);
  list.write_back();
  return result[0];
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
  const c10::cuda::CUDAGuard device_guard(scale.device());
  if (found_infs.size() > kMaxFlags) {
    std::vector<at::Tensor> flags;
    for (const at::Tensor& found_inf : found_infs) {
      flags.push_back(found_inf.reshape({}));
    }
    const at::Tensor overflow = at::stack(flags).ne(0).any().to(at::kFloat);
    update_scale_(scale, growth_tracker, overflow, growth_factor, backoff_factor, growth_interval);
    return;
  }
  std::vector<const float*> flags;
  for (const at::Tensor& found_inf : found_infs) {
    flags.push_back(found_inf.const_data_ptr<float>());
  }
  launch_update_scale(scale.mutable_data_ptr<float>(), growth_tracker.mutable_data_ptr<int32_t>(),
                      flags.data(), static_cast<int>(flags.size()),
                      {growth_factor, backoff_factor, growth_interval},
                      c10::cuda::getCurrentCUDAStream());
}

TORCH_LIBRARY_IMPL(torchamp, CUDA, m) {
  m.impl("unscale_", &unscale_);
  m.impl("clip_grad_norm_", &clip_grad_norm_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::cuda
