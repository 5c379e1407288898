#include <torch/csrc/Dtype.h>
#include <torch/csrc/utils/pybind.h>
#include <torchamp/autocast.h>

#include <memory>
#include <string>

#include "bindings.h"

namespace torchamp::python {

namespace {

// "cuda:0" is accepted as in torch, the index has no meaning.
std::unique_ptr<AutocastGuard> enter_autocast(const std::string& device, at::ScalarType dtype,
                                              bool enabled, bool cache_enabled) {
  return std::make_unique<AutocastGuard>(
      AutocastState(c10::Device(device).type(), dtype, enabled, cache_enabled));
}

}  // namespace

void bind_autocast(pybind11::module_& module) {
  namespace py = pybind11;
  py::class_<AutocastGuard>(module, "AutocastGuard", "One entered autocast region.")
      .def(py::init(&enter_autocast), py::arg("device_type"), py::arg("dtype"), py::arg("enabled"),
           py::arg("cache_enabled"))
      .def("end", &AutocastGuard::end, "Leaves the region and restores the thread's settings.");
}

}  // namespace torchamp::python
