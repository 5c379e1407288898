#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torchamp/grad_scaler.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

// The C++ GradScaler for the differential test in Python. Conversions only: what is tested is what
// a C++ program would call. Import `torchamp` first: the library must be loaded once.

namespace py = pybind11;

namespace {

using torch::optim::Optimizer;

torchamp::GradScaler make_scaler(double init_scale, double growth_factor, double backoff_factor,
                                 int64_t growth_interval, bool enabled) {
  return torchamp::GradScaler(torchamp::GradScalerOptions()
                                  .init_scale(init_scale)
                                  .growth_factor(growth_factor)
                                  .backoff_factor(backoff_factor)
                                  .growth_interval(growth_interval)
                                  .enabled(enabled));
}

std::shared_ptr<Optimizer> make_sgd(std::vector<at::Tensor> params, double lr, double momentum) {
  return std::make_shared<torch::optim::SGD>(std::move(params),
                                             torch::optim::SGDOptions(lr).momentum(momentum));
}

py::dict state_dict(const torchamp::GradScaler& scaler) {
  py::dict state;
  for (const auto& entry : scaler.state_dict()) {
    state[py::str(entry.key().toStringRef())] =
        entry.value().isInt() ? py::object(py::int_(entry.value().toInt()))
                              : py::object(py::float_(entry.value().toDouble()));
  }
  return state;
}

void load_state_dict(torchamp::GradScaler& scaler, const py::dict& state) {
  c10::impl::GenericDict converted(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : state) {
    const auto name = key.cast<std::string>();
    if (py::isinstance<py::int_>(value)) {
      converted.insert(name, value.cast<int64_t>());
    } else {
      converted.insert(name, value.cast<double>());
    }
  }
  scaler.load_state_dict(converted);
}

/// A fresh scaler with the state of this one, by way of an archive.
torchamp::GradScaler saved_and_loaded(const torchamp::GradScaler& scaler) {
  std::stringstream archive;
  torch::save(scaler, archive);
  torchamp::GradScaler fresh;
  torch::load(fresh, archive);
  return fresh;
}

}  // namespace

PYBIND11_MODULE(torchamp_test_bindings, module) {
  py::class_<Optimizer, std::shared_ptr<Optimizer>>(module, "Optimizer");
  module.def("SGD", torch::wrap_pybind_function(make_sgd), py::arg("params"), py::arg("lr"),
             py::arg("momentum") = 0.0);

  using torchamp::GradScaler;
  py::class_<GradScaler>(module, "GradScaler")
      .def(py::init(&make_scaler), py::arg("init_scale") = 65536.0, py::arg("growth_factor") = 2.0,
           py::arg("backoff_factor") = 0.5, py::arg("growth_interval") = 2000,
           py::arg("enabled") = true)
      .def("scale", torch::wrap_pybind_function([](GradScaler& scaler, const at::Tensor& outputs) {
             return scaler.scale(outputs);
           }))
      .def("scale_list", torch::wrap_pybind_function(
                             [](GradScaler& scaler, const std::vector<at::Tensor>& outputs) {
                               return scaler.scale(outputs);
                             }))
      .def("unscale_", torch::wrap_pybind_function([](GradScaler& scaler, Optimizer& optimizer) {
             scaler.unscale_(optimizer);
           }))
      .def("step", torch::wrap_pybind_function([](GradScaler& scaler, Optimizer& optimizer) {
             return scaler.step(optimizer) == torchamp::StepResult::stepped;
           }))
      .def("update", torch::wrap_pybind_function([](GradScaler& scaler) { scaler.update(); }))
      .def("update_number", torch::wrap_pybind_function([](GradScaler& scaler, double new_scale) {
             scaler.update(new_scale);
           }))
      .def("update_tensor",
           torch::wrap_pybind_function(
               [](GradScaler& scaler, const at::Tensor& new_scale) { scaler.update(new_scale); }))
      .def("get_scale", &GradScaler::get_scale)
      .def("get_growth_tracker", &GradScaler::get_growth_tracker)
      .def("set_growth_factor", &GradScaler::set_growth_factor)
      .def("set_backoff_factor", &GradScaler::set_backoff_factor)
      .def("set_growth_interval", &GradScaler::set_growth_interval)
      .def("state_dict", &state_dict)
      .def("load_state_dict", torch::wrap_pybind_function(load_state_dict))
      .def("saved_and_loaded", &saved_and_loaded);
}
