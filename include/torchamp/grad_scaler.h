#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/arg.h>
#include <torchamp/export.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace torchamp {

/// Options of a GradScaler; the defaults are PyTorch's.
struct GradScalerOptions {
  /// Device that the scale lives on. Unset: that of the first scaled loss. Set: the state is made
  /// at once.
  TORCH_ARG(std::optional<at::Device>, device) = std::nullopt;
  /// First scale factor: positive and finite, as its reciprocal in float32.
  TORCH_ARG(double, init_scale) = 65536.0;
  /// What the scale is multiplied by after `growth_interval` iterations without overflow: above 1.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// What the scale is multiplied by after an overflow: between 0 and 1.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// Iterations in a row without overflow after which the scale grows: at least 1.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// False turns every method into a no-op (`step` calls the optimizer), so that the same loop also
  /// serves float32 and bfloat16.
  TORCH_ARG(bool, enabled) = true;
  /// True makes it an error if the device is missing; else a scaler for a missing CUDA device is
  /// disabled, with a warning.
  TORCH_ARG(bool, require_device) = false;
};

/// What `GradScaler::step` did.
enum class StepResult {
  stepped,  ///< the optimizer's step ran
  skipped,  ///< a gradient was infinite or NaN, parameters were left alone
};

/// Scales the loss so that small float16 gradients do not vanish, unscales the gradients before the
/// optimizer's step, skips the step if any is infinite or NaN, and adapts the scale.
///
/// ```cpp
/// torchamp::GradScaler scaler;
/// for (auto& batch : *loader) {
///   optimizer.zero_grad();
///   torch::Tensor loss;
///   {
///     torchamp::AutocastGuard autocast(torch::kCUDA);
///     loss = criterion(model->forward(batch.data), batch.target);
///   }
///   scaler.scale(loss).backward();
///   scaler.step(optimizer);
///   scaler.update();
/// }
/// ```
///
/// One scaler serves any number of optimizers: `step` each, `update` once. Behaves as
/// `torch.amp.GradScaler`; docs/differences.md lists where it does not. Misuse throws c10::Error
/// and changes nothing (but a `step` without gradients counts as unscaled, as in PyTorch). Not
/// thread-safe. One that was moved from may only be assigned to or destroyed.
class TORCHAMP_API GradScaler {
 public:
  /// Throws c10::Error naming the option and its value if one is out of range. A CUDA device where
  /// there is no CUDA gives a warning and a disabled scaler, or c10::Error with `require_device`.
  explicit GradScaler(GradScalerOptions options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// The loss (or any outputs) times the scale, on the outputs' device. A disabled scaler returns
  /// its argument. A float16 tensor with dimensions stays float16; a 0-dim one becomes float32.
  [[nodiscard]] at::Tensor scale(const at::Tensor& outputs);
  [[nodiscard]] std::vector<at::Tensor> scale(at::TensorList outputs);

  /// Divides the optimizer's gradients by the scale, in place, and remembers whether any is
  /// infinite or NaN: to look at or change true gradients before `step`. Call it once an iteration,
  /// after all backward passes. Does not synchronise.
  ///
  /// Throws c10::Error before the first `scale`, after `unscale_` or `step` of this optimizer in
  /// the same iteration, and for float16 gradients (parameters should be float32 under autocast).
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales the optimizer's gradients unless `unscale_` did, and clips them, in place, so that
  /// the 2-norm of all of them is at most `max_norm` (not negative); one fused job instead of
  /// `unscale_` and `torch::nn::utils::clip_grad_norm_`. After an overflow, which `step` then
  /// skips, the gradients are left as they were. Also clips when the scaler is disabled. Does not
  /// synchronise.
  ///
  /// Returns the norm of the true gradients before clipping: float64, 0-dim, on their device.
  /// Throws c10::Error as `unscale_` does, but may follow it once.
  at::Tensor clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm);

  /// Unscales the gradients unless `unscale_` or `clip_grad_norm_` did, then runs
  /// `optimizer.step()` if all of them are finite. Reads one flag for each device of the
  /// parameters, which synchronises with it.
  ///
  /// Throws c10::Error before the first `scale`, when called twice in an iteration, and when no
  /// parameter of the optimizer has a gradient. If the optimizer throws, the exception passes
  /// through: the step may be tried again, or the next iteration begun with `zero_grad` and `scale`.
  /// If other optimizers were unscaled or stepped by then, end this iteration with `update` first.
  StepResult step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration: adapts the scale to whether any optimizer saw an overflow. Does not
  /// synchronise. Throws c10::Error if no gradients were checked since the last `update`.
  void update();

  /// Ends the iteration and sets the scale instead of adapting it.
  void update(double new_scale);

  /// The same with a tensor of one element on the scale's device; does not synchronise.
  void update(const at::Tensor& new_scale);

  /// The current scale; 1 if disabled. Synchronises with the scale's device.
  [[nodiscard]] double get_scale() const;

  /// Iterations in a row without overflow. Synchronises with the scale's device.
  [[nodiscard]] int64_t get_growth_tracker() const;

  [[nodiscard]] double get_growth_factor() const;
  [[nodiscard]] double get_backoff_factor() const;
  [[nodiscard]] int64_t get_growth_interval() const;
  [[nodiscard]] bool is_enabled() const;

  /// Setters check their argument as the constructor does.
  void set_growth_factor(double new_factor);
  void set_backoff_factor(double new_factor);
  void set_growth_interval(int64_t new_interval);

  /// The state with the keys and types of Python's `state_dict()`: scale, growth_factor,
  /// backoff_factor (float), growth_interval, _growth_tracker (int); empty if disabled, with a
  /// warning if that is because the device is missing. Call it after `update`.
  /// Synchronises. Python reads what `torch::save(scaler, path)` writes, by `torchamp.load_state`.
  [[nodiscard]] c10::impl::GenericDict state_dict() const;

  /// Takes a state that `state_dict` of either language made, for Python's through
  /// `torch::pickle_load(bytes).toGenericDict()`. A disabled scaler ignores it. Throws c10::Error
  /// naming what is wrong if it is empty, misses a key, or has a value of another type, a factor that
  /// the constructor refuses, or a scale or tracker beyond float32 or int32; nothing was changed
  /// then. What `update(value)` may set, such as a scale of infinity, is taken.
  void load_state_dict(const c10::impl::GenericDict& state);

  /// `torch::save(scaler, path)` and `torch::load(scaler, path)`.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with a step that is running
};

TORCHAMP_API torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                         const GradScaler& scaler);
TORCHAMP_API torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                        GradScaler& scaler);

}  // namespace torchamp
