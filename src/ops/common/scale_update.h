#pragma once

#include <cstdint>

#include "ops/common/dtype.h"
#include "ops/common/host_device.h"

namespace torchamp::common {

/// What `update_scale_` keeps between iterations.
struct ScaleState {
  float scale;
  int32_t growth_tracker;  // updates without an overflow since the scale last changed
};

/// The options of the rule, in the precision that PyTorch's own operator takes them.
struct ScaleUpdate {
  double growth_factor;
  double backoff_factor;
  int64_t growth_interval;
};

/// The scale-update rule: back off after an overflow, grow after `growth_interval` updates without
/// one. Products are formed in double and rounded once. A growth that would not be finite is left
/// out, its tracker restarts all the same. Growth fires at tracker >= interval (PyTorch: ==, which
/// never fires again once the interval was lowered below the tracker). An interval of 0 or less, which
/// a state dict of PyTorch may hold, never fires, as there.
TORCHAMP_HOST_DEVICE inline ScaleState updated(ScaleState state, bool overflow,
                                               const ScaleUpdate& rule) {
  if (overflow) {
    return {static_cast<float>(state.scale * rule.backoff_factor), 0};
  }
  const int64_t tracker = static_cast<int64_t>(state.growth_tracker) + 1;
  if (rule.growth_interval <= 0 || tracker < rule.growth_interval) {
    // A tracker at its largest value stays there: adding one would be undefined.
    return {state.scale, tracker > INT32_MAX ? INT32_MAX : static_cast<int32_t>(tracker)};
  }
  const float grown = static_cast<float>(state.scale * rule.growth_factor);
  const bool finite = (bit_cast<uint32_t>(grown) & 0x7f800000u) != 0x7f800000u;
  return {finite ? grown : state.scale, 0};
}

}  // namespace torchamp::common
