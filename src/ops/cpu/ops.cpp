#include <ATen/ops/full.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "ops/checks.h"
#include "ops/common/element.h"
#include "ops/common/scale_update.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/unscale.h"
#include "ops/cpu/unscale_and_clip.h"
#include "ops/gradient_list.h"

namespace torchamp::cpu {

namespace {

float value_of(const at::Tensor& scalar) { return *scalar.const_data_ptr<float>(); }

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  detail::check_unscale(grads, found_inf, scale);
  const detail::GradientList list(grads);
  const float given = value_of(scale);
  const float factor = scale_is_inverse ? given : common::inverse(given);
  const bool nonfinite = in_parallel(list.table(), [&](uint32_t first, uint32_t last) {
    return unscale_chunks(list.table(), first, last, factor);
  });
  if (nonfinite) {
    *found_inf.mutable_data_ptr<float>() = 1.0f;
  }
  list.write_back();
}

at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                           const std::optional<at::Tensor>& scale, double max_norm) {
  detail::check_clip(grads, found_inf, scale, max_norm);
  const detail::GradientList list(grads);
  const float inverse = scale ? common::inverse(value_of(*scale)) : 1.0f;
  const ClipResult result =
      unscale_and_clip(list.table(), inverse, max_norm, value_of(found_inf) != 0.0f);
  if (result.found_inf) {
    *found_inf.mutable_data_ptr<float>() = 1.0f;
  }
  list.write_back();
  return at::full({}, result.norm, at::kDouble);
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
  const bool overflow = std::any_of(found_infs.begin(), found_infs.end(),
                                    [](const at::Tensor& flag) { return value_of(flag) != 0.0f; });
  auto& scale_value = *scale.mutable_data_ptr<float>();
  auto& tracker_value = *growth_tracker.mutable_data_ptr<int32_t>();
  const common::ScaleState next = common::updated({scale_value, tracker_value}, overflow,
                                                  {growth_factor, backoff_factor, growth_interval});
  scale_value = next.scale;
  tracker_value = next.growth_tracker;
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  m.impl("unscale_", &unscale_);
  m.impl("clip_grad_norm_", &clip_grad_norm_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::cpu
