#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/serialize.h>
#include <torchamp/grad_scaler.h>

#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "grad_scaler/gradients.h"
#include "plain_tensor.h"

namespace py = pybind11;

namespace torchamp::python {

namespace {

/// The gradients of `optimizer.param_groups`, a list of dicts. Nothing if the fast path does not
/// take one of them.
std::optional<std::vector<at::Tensor>> plain_gradients(const py::list& param_groups,
                                                       bool allow_fp16) {
  static PyObject* const params_key = PyUnicode_InternFromString("params");
  std::vector<at::Tensor> grads;
  for (const py::handle group : param_groups) {
    PyObject* params =
        PyDict_Check(group.ptr()) ? PyDict_GetItemWithError(group.ptr(), params_key) : nullptr;
    if (params == nullptr || !PyList_Check(params)) {
      return std::nullopt;
    }
    const Py_ssize_t count = PyList_GET_SIZE(params);
    grads.reserve(grads.size() + static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* param = PyList_GET_ITEM(params, i);
      if (!THPVariable_CheckExact(param)) {
        return std::nullopt;
      }
      const at::Tensor& grad = THPVariable_Unpack(param).grad();
      if (!grad.defined()) {
        continue;
      }
      if (!is_plain(grad) || (!allow_fp16 && grad.scalar_type() == at::kHalf)) {
        return std::nullopt;
      }
      grads.push_back(grad);
    }
  }
  return grads;
}

py::object unscale_gradients(const py::list& param_groups, const at::Tensor& scale,
                             bool scale_is_inverse, const std::optional<at::Tensor>& found_inf,
                             bool allow_fp16) {
  if (any_mode_active() || !is_plain(scale) || (found_inf && !is_plain(*found_inf))) {
    return py::none();
  }
  const auto grads = plain_gradients(param_groups, allow_fp16);
  if (!grads) {
    return py::none();
  }
  detail::FoundInf flags;
  {
    const py::gil_scoped_release no_gil;  // `grads` holds the tensors
    flags = detail::unscale_gradients(*grads, scale, scale_is_inverse, found_inf);
  }
  py::dict per_device;
  for (const auto& [device, flag] : flags) {
    per_device[py::cast(device)] = py::cast(flag);
  }
  return per_device;
}

bool update_scale(const at::Tensor& scale, const at::Tensor& growth_tracker,
                  const std::vector<at::Tensor>& found_infs, double growth_factor,
                  double backoff_factor, int64_t growth_interval) {
  if (any_mode_active() || !is_plain(scale) || !is_plain(growth_tracker) ||
      !std::all_of(found_infs.begin(), found_infs.end(), is_plain)) {
    return false;
  }
  detail::update_scale(scale, growth_tracker, found_infs, growth_factor, backoff_factor,
                       growth_interval);
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
             "flags as {device: tensor}, or None, with nothing changed, if a gradient is not plain "
             "strided memory (or float16 where that is not allowed).");
  module.def("update_scale", torch::wrap_pybind_function(update_scale), py::arg("scale"),
             py::arg("growth_tracker"), py::arg("found_infs"), py::arg("growth_factor"),
             py::arg("backoff_factor"), py::arg("growth_interval"),
             "Adapts scale and growth_tracker in place to the flags. Returns False, with nothing "
             "changed, if a tensor is not plain.");
  module.def("load_state", torch::wrap_pybind_function(load_state), py::arg("path"),
             "The state dict in a file that C++ wrote with torch::save(scaler, path).");
}

}  // namespace torchamp::python
