#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/serialize.h>
#include <torchamp/grad_scaler.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "grad_scaler/gradients.h"
#include "plain_tensor.h"

namespace py = pybind11;

namespace torchamp::python {

namespace {

/// Appends the gradients of a list of parameters. False if the fast path does not take one of them.
bool append_plain_gradients(PyObject* params, bool allow_fp16, std::vector<at::Tensor>& grads) {
  const Py_ssize_t count = PyList_GET_SIZE(params);
  grads.reserve(grads.size() + static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* param = PyList_GET_ITEM(params, i);
    if (!THPVariable_CheckExact(param)) {
      return false;
    }
    const at::Tensor& grad = THPVariable_Unpack(param).grad();
    if (!grad.defined()) {
      continue;
    }
    if (!is_plain(grad) || (!allow_fp16 && grad.scalar_type() == at::kHalf)) {
      return false;
    }
    grads.push_back(grad);
  }
  return true;
}

/// The gradients of `optimizer.param_groups`, a list of dicts. Nothing if the fast path does not
/// take one of them, or if these are other types than those of torch.optim.Optimizer.
std::optional<std::vector<at::Tensor>> plain_gradients(PyObject* param_groups, bool allow_fp16) {
  static PyObject* const params_key = PyUnicode_InternFromString("params");
  if (!PyList_Check(param_groups)) {
    return std::nullopt;
  }
  std::vector<at::Tensor> grads;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(param_groups); ++i) {
    PyObject* group = PyList_GET_ITEM(param_groups, i);
    PyObject* params = PyDict_CheckExact(group) ? PyDict_GetItem(group, params_key) : nullptr;
    if (params == nullptr || !PyList_CheckExact(params) ||
        !append_plain_gradients(params, allow_fp16, grads)) {
      return std::nullopt;
    }
  }
  return grads;
}

py::dict to_dict(const detail::FoundInf& flags) {
  py::dict per_device;
  for (const auto& [device, flag] : flags) {
    per_device[py::cast(device)] = py::cast(flag);
  }
  return per_device;
}

py::object unscale_gradients(const py::object& param_groups, const py::object& scale,
                             bool scale_is_inverse, const py::object& found_inf, bool allow_fp16) {
  if (any_mode_active() || !is_plain_scalar(scale.ptr(), at::kFloat) ||
      !(found_inf.is_none() || is_plain_scalar(found_inf.ptr(), at::kFloat))) {
    return py::none();
  }
  const auto grads = plain_gradients(param_groups.ptr(), allow_fp16);
  if (!grads) {
    return py::none();
  }
  const at::Tensor scale_tensor = THPVariable_Unpack(scale.ptr());
  std::optional<at::Tensor> first_flag;
  if (!found_inf.is_none()) {
    first_flag = THPVariable_Unpack(found_inf.ptr());
  }
  detail::FoundInf flags;
  {
    const py::gil_scoped_release no_gil;  // `grads` holds the tensors
    flags = detail::unscale_gradients(*grads, scale_tensor, scale_is_inverse, first_flag);
  }
  return to_dict(flags);
}

py::object clip_gradients(const py::object& param_groups, const py::object& scale, double max_norm,
                          const py::dict& known, bool allow_fp16) {
  if (any_mode_active() || !(scale.is_none() || is_plain_scalar(scale.ptr(), at::kFloat))) {
    return py::none();
  }
  detail::FoundInf known_flags;
  for (const auto& [device, flag] : known) {
    if (!is_plain_scalar(flag.ptr(), at::kFloat)) {
      return py::none();
    }
    known_flags.emplace_back(device.cast<at::Device>(), THPVariable_Unpack(flag.ptr()));
  }
  const auto grads = plain_gradients(param_groups.ptr(), allow_fp16);
  if (!grads) {
    return py::none();
  }
  std::optional<at::Tensor> scale_tensor;
  if (!scale.is_none()) {
    scale_tensor = THPVariable_Unpack(scale.ptr());
  }
  detail::Clipped clipped;
  {
    const py::gil_scoped_release no_gil;  // `grads` and `known_flags` hold the tensors
    clipped = detail::clip_gradients(*grads, scale_tensor, max_norm, known_flags);
  }
  return py::make_tuple(clipped.norm, to_dict(clipped.found_inf));
}

bool update_scale(const py::object& scale, const py::object& growth_tracker,
                  const py::list& found_infs, double growth_factor, double backoff_factor,
                  int64_t growth_interval) {
  if (any_mode_active() || !is_plain_scalar(scale.ptr(), at::kFloat) ||
      !is_plain_scalar(growth_tracker.ptr(), at::kInt)) {
    return false;
  }
  std::vector<at::Tensor> flags;
  flags.reserve(found_infs.size());
  for (const py::handle flag : found_infs) {
    if (!is_plain_scalar(flag.ptr(), at::kFloat)) {
      return false;
    }
    flags.push_back(THPVariable_Unpack(flag.ptr()));
  }
  detail::update_scale(THPVariable_Unpack(scale.ptr()), THPVariable_Unpack(growth_tracker.ptr()),
                       std::move(flags), growth_factor, backoff_factor, growth_interval);
  return true;
}

py::dict load_state(const std::string& path) {
  GradScaler scaler;
  torch::load(scaler, path);
  py::dict state;
  for (const auto& entry : scaler.state_dict()) {
    state[py::str(entry.key().toStringRef())] =
        entry.value().isInt() ? py::object(py::int_(entry.value().toInt()))
                              : py::object(py::float_(entry.value().toDouble()));
  }
  return state;
}

}  // namespace

void bind_grad_scaler(py::module_& module) {
  module.def("unscale_gradients", torch::wrap_pybind_function(unscale_gradients),
             py::arg("param_groups"), py::arg("scale"), py::arg("scale_is_inverse") = false,
             py::arg("found_inf") = py::none(), py::arg("allow_fp16") = false,
             "Unscales the gradients of an optimizer's param_groups in place. Returns the overflow "
             "flags as {device: tensor}, or None, with nothing changed, if a tensor is not plain "
             "strided memory (or a gradient is float16 where that is not allowed).");
  module.def("clip_gradients", torch::wrap_pybind_function(clip_gradients), py::arg("param_groups"),
             py::arg("scale"), py::arg("max_norm"), py::arg("known"), py::arg("allow_fp16") = false,
             "Unscales (unless scale is None) and clips the gradients in place. Returns their norm "
             "and the overflow flags as {device: tensor}, which start from `known`, or None, with "
             "nothing changed, where unscale_gradients does.");
  module.def("update_scale", torch::wrap_pybind_function(update_scale), py::arg("scale"),
             py::arg("growth_tracker"), py::arg("found_infs"), py::arg("growth_factor"),
             py::arg("backoff_factor"), py::arg("growth_interval"),
             "Adapts scale and growth_tracker in place to the flags. Returns False, with nothing "
             "changed, if a tensor is not plain.");
  module.def("load_state", torch::wrap_pybind_function(load_state), py::arg("path"),
             "The state dict in a file that C++ wrote with torch::save(scaler, path).");
}

}  // namespace torchamp::python
