#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "ops/checks.h"
#include "ops/common/element.h"
#include "ops/common/scale_update.h"
#include "ops/cpu/unscale.h"
#include "ops/gradient_list.h"

namespace torchamp::cpu {

namespace {

// Below this many elements a thread, waking another costs more than it gives.
constexpr int64_t kElementsPerThread = 32768;

/// Cuts the table into `parts` runs of chunks of about the same number of elements.
std::vector<uint32_t> cut(const common::ChunkTable& table, int64_t parts) {
  std::vector<uint32_t> bounds{0};
  int64_t before = 0;  // elements in the entries before this one
  for (const common::ChunkEntry& entry : table.entries()) {
    for (auto part = static_cast<int64_t>(bounds.size()); part < parts; ++part) {
      const int64_t wanted = table.num_elements() / parts * part - before;
      if (wanted >= entry.numel) {
        break;
      }
      bounds.push_back(entry.first_chunk +
                       static_cast<uint32_t>(std::max<int64_t>(wanted, 0) / common::kChunkSize));
    }
    before += entry.numel;
  }
  bounds.push_back(table.num_chunks());
  return bounds;
}

bool unscale_in_parallel(const common::ChunkTable& table, float factor) {
  const int64_t parts =
      std::clamp<int64_t>(table.num_elements() / kElementsPerThread, 1, at::get_num_threads());
  if (parts == 1) {
    return unscale_chunks(table, 0, table.num_chunks(), factor);
  }
  const std::vector<uint32_t> bounds = cut(table, parts);
  std::atomic<bool> nonfinite{false};
  at::parallel_for(0, static_cast<int64_t>(bounds.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    if (unscale_chunks(table, bounds[static_cast<std::size_t>(begin)],
                       bounds[static_cast<std::size_t>(end)], factor)) {
      nonfinite.store(true, std::memory_order_relaxed);
    }
  });
  return nonfinite;
}

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  detail::check_unscale(grads, found_inf, scale);
  const detail::GradientList list(grads);
  const float given = *scale.const_data_ptr<float>();
  const float factor = scale_is_inverse ? given : common::inverse(given);
  if (unscale_in_parallel(list.table(), factor)) {
    *found_inf.mutable_data_ptr<float>() = 1.0f;
  }
  list.write_back();
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  detail::check_update_scale(scale, growth_tracker, found_infs);
  const bool overflow =
      std::any_of(found_infs.begin(), found_infs.end(),
                  [](const at::Tensor& flag) { return *flag.const_data_ptr<float>() != 0.0f; });
  auto& scale_value = *scale.mutable_data_ptr<float>();
  auto& tracker_value = *growth_tracker.mutable_data_ptr<int32_t>();
  const common::ScaleState next = common::updated({scale_value, tracker_value}, overflow,
                                                  {growth_factor, backoff_factor, growth_interval});
  scale_value = next.scale;
  tracker_value = next.growth_tracker;
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  m.impl("unscale_", &unscale_);
  m.impl("update_scale_", &update_scale_);
}

}  // namespace

}  // namespace torchamp::cpu
