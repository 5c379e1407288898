#include "ops/checks.h"

namespace torchamp::detail {

namespace {

void check_scalar(const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  const at::Device& device) {
  TORCH_CHECK(tensor.numel() == 1, "torchamp: ", name, " must have 1 element, got ", tensor.numel(),
              " (shape ", tensor.sizes(), ")");
  TORCH_CHECK(tensor.scalar_type() == dtype, "torchamp: ", name, " must be a ", dtype,
              " tensor, got ", tensor.scalar_type());
  TORCH_CHECK(!tensor.is_neg(), "torchamp: ", name,
              " must not be a negative view: its memory holds the number with the other sign");
  TORCH_CHECK(tensor.device() == device,
              "torchamp: expected all tensors to be on the same device, but ", name, " is on ",
              tensor.device(), " and not on ", device);
}

}  // namespace

void check_unscale(at::TensorList grads, const at::Tensor& found_inf, const at::Tensor& scale) {
  const at::Device device = found_inf.device();
  check_scalar("found_inf", found_inf, at::kFloat, device);
  check_scalar("scale", scale, at::kFloat, device);
  for (const auto i : c10::irange(grads.size())) {
    TORCH_CHECK(grads[i].device() == device,
                "torchamp: expected all tensors to be on the same device, but gradient ", i,
                " is on ", grads[i].device(), " and found_inf on ", device);
  }
}

void check_max_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm >= 0, "torchamp: max_norm must be 0 or more, got ", max_norm);
}

void check_clip(at::TensorList grads, const at::Tensor& found_inf,
                const std::optional<at::Tensor>& scale, double max_norm) {
  check_max_norm(max_norm);
  check_unscale(grads, found_inf, scale.value_or(found_inf));
}

void check_update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                        at::TensorList found_infs) {
  const at::Device device = scale.device();
  check_scalar("scale", scale, at::kFloat, device);
  check_scalar("growth_tracker", growth_tracker, at::kInt, device);
  TORCH_CHECK(!found_infs.empty(), "torchamp: update_scale_ needs at least one found_inf");
  for (const at::Tensor& found_inf : found_infs) {
    check_scalar("found_inf", found_inf, at::kFloat, device);
  }
}

}  // namespace torchamp::detail
