#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/irange.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "grad_scaler/failed_step.h"
#include "grad_scaler/gradients.h"
#include "ops/checks.h"

namespace torchamp {

namespace {

enum class Stage { kReady, kUnscaled, kClipped, kStepped };

/// What is known of one optimizer in the current iteration.
struct OptimizerState {
  /// Null for one that was destroyed: another optimizer is there by now.
  const torch::optim::Optimizer* address;
  detail::WeakTensor first_parameter;
  Stage stage = Stage::kReady;
  detail::FoundInf found_inf;
  std::optional<detail::FailedStep> failed_step;
};

constexpr std::array<const char*, 5> kStateKeys{"scale", "growth_factor", "backoff_factor",
                                                "growth_interval", "_growth_tracker"};

void check_init_scale(double value) {
  const auto scale = static_cast<float>(value);
  TORCH_CHECK_VALUE(std::isfinite(scale) && scale > 0,
                    "torchamp: init_scale must be positive and finite in float32, got ", value);
  TORCH_CHECK_VALUE(std::isfinite(1 / scale),
                    "torchamp: 1/init_scale must be finite in float32, got init_scale ", value);
}

void check_growth_factor(double value) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value > 1,
                    "torchamp: growth_factor must be above 1 and finite, got ", value);
}

void check_backoff_factor(double value) {
  TORCH_CHECK_VALUE(value > 0 && value < 1,
                    "torchamp: backoff_factor must be between 0 and 1, got ", value);
}

void check_growth_interval(int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, "torchamp: growth_interval must be at least 1, got ", value);
}

void check_keys(const c10::impl::GenericDict& state) {
  std::string missing;
  for (const char* key : kStateKeys) {
    if (!state.contains(key)) {
      missing += missing.empty() ? key : std::string(", ") + key;
    }
  }
  TORCH_CHECK_VALUE(missing.empty(), "torchamp: the state dict has no ", missing);
}

double number(const c10::impl::GenericDict& state, const char* key) {
  const c10::IValue& value = state.at(key);
  TORCH_CHECK_TYPE(value.isDouble() || value.isInt(), "torchamp: ", key,
                   " in the state dict must be a number, got ", value.tagKind());
  return value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}

/// What a scaler saved it can load, also a scale that update(value) set to infinity, say.
void check_fits_float(const char* name, double scale) {
  TORCH_CHECK_VALUE(std::isfinite(static_cast<float>(scale)) == std::isfinite(scale),
                    "torchamp: ", name, " must fit into float32, got ", scale);
}

int32_t tracker_of(int64_t value) {
  TORCH_CHECK_VALUE(value >= INT32_MIN && value <= INT32_MAX,
                    "torchamp: _growth_tracker in the state dict must fit into int32, got ", value);
  return static_cast<int32_t>(value);
}

int64_t integer(const c10::impl::GenericDict& state, const char* key) {
  const c10::IValue& value = state.at(key);
  TORCH_CHECK_TYPE(value.isInt(), "torchamp: ", key, " in the state dict must be an integer, got ",
                   value.tagKind());
  return value.toInt();
}

/// Undefined if the optimizer has no parameters.
at::Tensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) {
      return group.params().front();
    }
  }
  return {};
}

bool has_parameter(const torch::optim::Optimizer& optimizer, const detail::WeakTensor& wanted) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [&wanted](const auto& group) {
    return std::any_of(
        group.params().begin(), group.params().end(),
        [&wanted](const at::Tensor& parameter) { return detail::weak(parameter) == wanted; });
  });
}

/// Calls `visit` with each parameter that has a gradient, after refusing what `unscale_` refuses.
template <typename Visit>
void for_each_gradient(torch::optim::Optimizer& optimizer, bool allow_fp16, const Visit& visit) {
  for (const auto g : c10::irange(optimizer.param_groups().size())) {
    auto& params = optimizer.param_groups()[g].params();
    for (const auto p : c10::irange(params.size())) {
      const at::Tensor& grad = params[p].grad();
      if (!grad.defined()) {
        continue;
      }
      TORCH_CHECK_VALUE(allow_fp16 || grad.scalar_type() != at::kHalf,
                        "torchamp: attempting to unscale FP16 gradients (parameter ", p,
                        " of group ", g, ", shape ", grad.sizes(),
                        "). Keep parameters in float32; autocast makes float16 copies.");
      visit(params[p]);
    }
  }
}

/// The tensors to unscale: a sparse gradient is represented by its values.
std::vector<at::Tensor> gradients_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> grads;
  for_each_gradient(optimizer, /*allow_fp16=*/false, [&grads](const at::Tensor& parameter) {
    const at::Tensor& grad = parameter.grad();
    grads.push_back(grad.is_sparse() ? grad._values() : grad);
  });
  return grads;
}

/// The same for a norm: values that a sparse gradient has twice are summed first.
std::vector<at::Tensor> coalesced_gradients_of(torch::optim::Optimizer& optimizer,
                                               bool allow_fp16) {
  std::vector<at::Tensor> parameters;
  for_each_gradient(optimizer, allow_fp16, [&parameters](const at::Tensor& parameter) {
    parameters.push_back(parameter);
  });
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().is_sparse()) {
      parameter.mutable_grad() = parameter.grad().coalesce();
      grads.push_back(parameter.grad()._values());
    } else {
      grads.push_back(parameter.grad());
    }
  }
  return grads;
}

}  // namespace

struct GradScaler::State {
  GradScalerOptions options;
  int32_t init_growth_tracker = 0;  // these two are used until the tensors exist
  at::Tensor scale;                 // float32, 0-dim; undefined before the first scale()
  at::Tensor growth_tracker;        // int32, 0-dim
  std::vector<OptimizerState> optimizers;
  bool misses_device = false;  // disabled for that reason, and saving has not warned of it yet

  void make_tensors(const at::Device& device) {
    const c10::InferenceMode off(false);  // they are written to in all modes
    const auto made =
        at::full({}, options.init_scale(), at::TensorOptions(at::kFloat).device(device));
    growth_tracker = at::full({}, init_growth_tracker, at::TensorOptions(at::kInt).device(device));
    scale = made;  // last: both are there, or neither counts
  }

  void check_scaled(const char* method) const {
    TORCH_CHECK(scale.defined(), "torchamp: attempted ", method,
                " before any scale(). Did the loop scale its loss with scaler.scale(loss)?");
  }

  /// Null if the iteration of this optimizer has ended, or not begun. An optimizer is known by its
  /// address or, when it was moved, by its first parameter; one at the address of another that was
  /// destroyed has other parameters.
  OptimizerState* find(const torch::optim::Optimizer& optimizer) {
    const at::Tensor parameter = first_parameter(optimizer);
    const detail::WeakTensor first = detail::weak(parameter);
    for (OptimizerState& known : optimizers) {
      if (known.address == &optimizer) {
        if (known.first_parameter == first || has_parameter(optimizer, known.first_parameter)) {
          return &known;
        }
        known.address = nullptr;  // its flags still count
      }
    }
    const auto moved =
        std::find_if(optimizers.begin(), optimizers.end(), [&first](const OptimizerState& known) {
          return known.address != nullptr && known.first_parameter == first;
        });
    if (moved == optimizers.end()) {
      return nullptr;
    }
    moved->address = &optimizer;
    return &*moved;
  }

  OptimizerState& of(const torch::optim::Optimizer& optimizer) {
    OptimizerState fresh{
        &optimizer, detail::weak(first_parameter(optimizer)), Stage::kReady, {}, {}};
    OptimizerState* const known = find(optimizer);
    if (known == nullptr) {
      return optimizers.emplace_back(std::move(fresh));
    }
    if (known->failed_step && known->failed_step->is_over()) {
      *known = std::move(fresh);
    }
    return *known;
  }

  void unscale(torch::optim::Optimizer& optimizer, OptimizerState& known) const {
    known.found_inf = detail::unscale_gradients(gradients_of(optimizer), scale);
    known.stage = Stage::kUnscaled;
  }

  /// What is known of optimizers is looked up anew after this: a step may use the scaler itself.
  void run_step(torch::optim::Optimizer& optimizer) {
    try {
      optimizer.step();
    } catch (...) {
      if (OptimizerState* known = find(optimizer)) {
        known->failed_step.emplace(optimizer);
      }
      throw;
    }
  }

  void note_scale() {
    for (OptimizerState& known : optimizers) {
      if (known.failed_step) {
        known.failed_step->note_scale();
      }
    }
  }

  void fill_tensors(double scale_value, int32_t tracker_value) const {
    if (scale.defined()) {
      scale.fill_(scale_value);
      growth_tracker.fill_(tracker_value);
    }
  }
};

GradScaler::GradScaler(GradScalerOptions options) : state_(std::make_shared<State>()) {
  const std::optional<at::Device> device = options.device();
  if (options.enabled() && device && device->is_cuda() && !at::hasCUDA()) {
    TORCH_CHECK(!options.require_device(),
                "torchamp: GradScaler for CUDA, which is not available, was made with "
                "require_device(true)");
    TORCH_WARN("torchamp: GradScaler for CUDA, but CUDA is not available. Disabling it.");
    options.enabled(false);
    state_->misses_device = true;
  }
  if (options.enabled()) {
    check_init_scale(options.init_scale());
    check_growth_factor(options.growth_factor());
    check_backoff_factor(options.backoff_factor());
    check_growth_interval(options.growth_interval());
  }
  state_->options = options;
  if (options.enabled() && device) {
    state_->make_tensors(*device);
  }
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!is_enabled()) {
    return outputs;
  }
  TORCH_CHECK(outputs.defined(), "torchamp: scale() was given an undefined tensor");
  state_->note_scale();
  if (!state_->scale.defined()) {
    state_->make_tensors(outputs.device());
  }
  return outputs * detail::on_device(state_->scale, outputs.device());
}

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  std::vector<at::Tensor> scaled;
  scaled.reserve(outputs.size());
  for (const at::Tensor& output : outputs) {
    scaled.push_back(scale(output));
  }
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    return;
  }
  state_->check_scaled("unscale_()");
  OptimizerState& known = state_->of(optimizer);
  TORCH_CHECK(known.stage != Stage::kUnscaled && known.stage != Stage::kClipped,
              "torchamp: unscale_() has already been called on this optimizer since the last "
              "update(). Call update() once every optimizer has stepped.");
  TORCH_CHECK(known.stage != Stage::kStepped,
              "torchamp: unscale_() is being called after step(). Call it before step(), and "
              "update() once every optimizer has stepped.");
  state_->unscale(optimizer, known);
}

at::Tensor GradScaler::clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm) {
  detail::check_max_norm(max_norm);  // before sparse gradients are coalesced
  if (!is_enabled()) {
    const auto grads = coalesced_gradients_of(optimizer, /*allow_fp16=*/true);
    return detail::clip_gradients(grads, std::nullopt, max_norm).norm;
  }
  state_->check_scaled("clip_grad_norm_()");
  OptimizerState& known = state_->of(optimizer);
  TORCH_CHECK(
      known.stage != Stage::kStepped,
      "torchamp: clip_grad_norm_() is being called after step(). Call it before step(), and "
      "update() once every optimizer has stepped.");
  // Gradients of an iteration that ended without update() would be taken for unscaled ones.
  TORCH_CHECK(
      known.stage != Stage::kClipped,
      "torchamp: clip_grad_norm_() has already been called on this optimizer since the last "
      "update(). Call update() also when a batch is left out.");
  const bool unscaled = known.stage == Stage::kUnscaled;
  const auto grads = coalesced_gradients_of(optimizer, /*allow_fp16=*/false);
  const detail::Clipped clipped =
      detail::clip_gradients(grads, unscaled ? std::nullopt : std::optional(state_->scale),
                             max_norm, unscaled ? known.found_inf : detail::FoundInf{});
  known.found_inf = clipped.found_inf;
  known.stage = Stage::kClipped;
  return clipped.norm;
}

StepResult GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return StepResult::stepped;
  }
  const std::shared_ptr<State> state = state_;  // the step may use, replace or destroy this scaler
  state->check_scaled("step()");
  OptimizerState& known = state->of(optimizer);
  TORCH_CHECK(known.stage != Stage::kStepped,
              "torchamp: step() has already been called on this optimizer since the last update(). "
              "Call update() once every optimizer has stepped.");
  if (known.stage == Stage::kReady) {
    state->unscale(optimizer, known);
  }
  TORCH_CHECK(
      !known.found_inf.empty(),
      "torchamp: no inf checks were recorded for this optimizer: none of its parameters has "
      "a gradient. Are they frozen, was the loss detached, or was the optimizer made before "
      "the model was moved or its parameters replaced?");
  const bool overflow = detail::any_found_inf(known.found_inf);
  if (!overflow) {
    state->run_step(optimizer);
  }
  if (OptimizerState* stepped = state->find(optimizer)) {
    stepped->stage = Stage::kStepped;
    stepped->failed_step.reset();
  }
  return overflow ? StepResult::skipped : StepResult::stepped;
}

void GradScaler::update() {
  if (!is_enabled()) {
    return;
  }
  state_->check_scaled("update()");
  std::vector<at::Tensor> found_infs;
  for (const OptimizerState& known : state_->optimizers) {
    for (const auto& [device, flag] : known.found_inf) {
      found_infs.push_back(flag);
    }
  }
  TORCH_CHECK(!found_infs.empty(),
              "torchamp: no inf checks were recorded prior to update(). Call step() or unscale_() "
              "for an optimizer whose parameters have gradients first.");
  const GradScalerOptions& options = state_->options;
  detail::update_scale(state_->scale, state_->growth_tracker, std::move(found_infs),
                       options.growth_factor(), options.backoff_factor(),
                       options.growth_interval());
  state_->optimizers.clear();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) {
    return;
  }
  state_->check_scaled("update()");
  check_fits_float("new_scale", new_scale);
  state_->scale.fill_(new_scale);
  state_->optimizers.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) {
    return;
  }
  state_->check_scaled("update()");
  TORCH_CHECK(new_scale.defined() && new_scale.numel() == 1 && !new_scale.requires_grad() &&
                  new_scale.device().type() == state_->scale.device().type(),
              "torchamp: new_scale must be a tensor with 1 element on ",
              state_->scale.device().type(), " that does not require gradients");
  state_->scale.copy_(new_scale.reshape({}));
  state_->optimizers.clear();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) {
    return 1.0;
  }
  return state_->scale.defined() ? state_->scale.item<double>() : state_->options.init_scale();
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) {
    return 0;
  }
  return state_->growth_tracker.defined() ? state_->growth_tracker.item<int64_t>()
                                          : state_->init_growth_tracker;
}

double GradScaler::get_growth_factor() const { return state_->options.growth_factor(); }
double GradScaler::get_backoff_factor() const { return state_->options.backoff_factor(); }
int64_t GradScaler::get_growth_interval() const { return state_->options.growth_interval(); }
bool GradScaler::is_enabled() const { return state_->options.enabled(); }

void GradScaler::set_growth_factor(double new_factor) {
  check_growth_factor(new_factor);
  state_->options.growth_factor(new_factor);
}

void GradScaler::set_backoff_factor(double new_factor) {
  check_backoff_factor(new_factor);
  state_->options.backoff_factor(new_factor);
}

void GradScaler::set_growth_interval(int64_t new_interval) {
  check_growth_interval(new_interval);
  state_->options.growth_interval(new_interval);
}

c10::impl::GenericDict GradScaler::state_dict() const {
  if (std::exchange(state_->misses_device, false)) {
    TORCH_WARN(
        "torchamp: a GradScaler that was disabled because CUDA is not available is being saved: "
        "its state is empty, and an enabled GradScaler refuses to load that. Set enabled(false) "
        "where it is meant to be off, require_device(true) to be told when it is made.");
  }
  c10::impl::GenericDict state(c10::StringType::get(), c10::AnyType::get());
  if (is_enabled()) {
    state.insert("scale", get_scale());
    state.insert("growth_factor", get_growth_factor());
    state.insert("backoff_factor", get_backoff_factor());
    state.insert("growth_interval", get_growth_interval());
    state.insert("_growth_tracker", get_growth_tracker());
  }
  return state;
}

void GradScaler::load_state_dict(const c10::impl::GenericDict& state) {
  if (!is_enabled()) {
    return;
  }
  TORCH_CHECK(!state.empty(),
              "torchamp: the source state dict is empty, possibly because it was saved from a "
              "disabled GradScaler");
  check_keys(state);
  GradScalerOptions options = state_->options;
  options.init_scale(number(state, "scale"))
      .growth_factor(number(state, "growth_factor"))
      .backoff_factor(number(state, "backoff_factor"))
      .growth_interval(integer(state, "growth_interval"));
  const int32_t tracker = tracker_of(integer(state, "_growth_tracker"));
  check_fits_float("scale in the state dict", options.init_scale());
  check_growth_factor(options.growth_factor());
  check_backoff_factor(options.backoff_factor());
  state_->fill_tensors(options.init_scale(), tracker);  // first: it may throw
  state_->options = options;
  state_->init_growth_tracker = tracker;
}

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& entry : state_dict()) {
    archive.write(entry.key().toStringRef(), entry.value());
  }
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  c10::impl::GenericDict state(c10::StringType::get(), c10::AnyType::get());
  for (const char* key : kStateKeys) {
    c10::IValue value;
    if (archive.try_read(key, value)) {
      state.insert(key, value);
    }
  }
  TORCH_CHECK(!is_enabled() || !state.empty(),
              "torchamp: the archive holds no state of a GradScaler: it is of something else, or "
              "was saved from a disabled one");
  load_state_dict(state);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler) {
  scaler.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler) {
  scaler.load(archive);
  return archive;
}

}  // namespace torchamp
