#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torchamp/ops.h>

// The schemas of all operators. Kernels are registered in the folder of their dispatch key.
TORCH_LIBRARY(torchamp, m) {
  m.def(
      "unscale_(Tensor(a!)[] grads, Tensor(b!) found_inf, Tensor scale, "
      "bool scale_is_inverse=False) -> ()");
  m.def(
      "clip_grad_norm_(Tensor(a!)[] grads, Tensor(b!) found_inf, Tensor? scale, float max_norm) "
      "-> Tensor");
  m.def(
      "update_scale_(Tensor(a!) scale, Tensor(b!) growth_tracker, Tensor[] found_infs, "
      "float growth_factor, float backoff_factor, int growth_interval) -> ()");
}

namespace {

// Gradients are data here, nothing to differentiate. Without these entries the dispatcher would box
// every tensor of the list for the Autograd fallback (24 ns a tensor). A real factor commutes with
// conjugation and negation, so views that carry those as a bit need not be resolved.
void register_fallthroughs(torch::Library& m) {
  m.impl("unscale_", torch::CppFunction::makeFallthrough());
  m.impl("clip_grad_norm_", torch::CppFunction::makeFallthrough());
  m.impl("update_scale_", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(torchamp, Autograd, m) { register_fallthroughs(m); }
TORCH_LIBRARY_IMPL(torchamp, Conjugate, m) { register_fallthroughs(m); }
TORCH_LIBRARY_IMPL(torchamp, Negative, m) { register_fallthroughs(m); }

}  // namespace

namespace torchamp {

void unscale_(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale,
              bool scale_is_inverse) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchamp::unscale_", "")
                             .typed<decltype(unscale_)>();
  op.call(grads, found_inf, scale, scale_is_inverse);
}

at::Tensor clip_grad_norm_(at::TensorList grads, const at::Tensor& found_inf,
                           const std::optional<at::Tensor>& scale, double max_norm) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchamp::clip_grad_norm_", "")
                             .typed<decltype(clip_grad_norm_)>();
  return op.call(grads, found_inf, scale, max_norm);
}

void update_scale_(const at::Tensor& scale, const at::Tensor& growth_tracker,
                   at::TensorList found_infs, double growth_factor, double backoff_factor,
                   int64_t growth_interval) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("torchamp::update_scale_", "")
                             .typed<decltype(update_scale_)>();
  op.call(scale, growth_tracker, found_infs, growth_factor, backoff_factor, growth_interval);
}

}  // namespace torchamp
