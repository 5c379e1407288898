#include <ATen/autocast_mode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torchamp/autocast.h>

#include <memory>
#include <string>

#include "bindings.h"

namespace py = pybind11;

namespace torchamp::python {

namespace {

/// A region that Python entered. If it is dropped before its end it stays in force: only `__exit__`
/// on the thread that entered it may restore that thread's settings, and Python may free objects
/// on any other (after a fork, all those of the threads that are no more).
class AutocastRegion {
 public:
  explicit AutocastRegion(const AutocastState& state)
      : guard_(std::make_unique<AutocastGuard>(state)) {}
  ~AutocastRegion() { static_cast<void>(guard_.release()); }
  AutocastRegion(const AutocastRegion&) = delete;
  AutocastRegion& operator=(const AutocastRegion&) = delete;

  void end() { guard_.reset(); }

 private:
  std::unique_ptr<AutocastGuard> guard_;
};

/// Returns the region and what was before it: enabled, dtype, cache_enabled.
py::tuple enter_autocast(const std::string& device_type, at::ScalarType dtype, bool enabled,
                         bool cache_enabled) {
  // "cuda:0" is accepted as in torch, the index has no meaning.
  const c10::DeviceType device = c10::Device(device_type).type();
  const bool previous_enabled = at::autocast::is_autocast_enabled(device);
  const at::ScalarType previous_dtype = at::autocast::get_autocast_dtype(device);
  const bool previous_cache_enabled = at::autocast::is_autocast_cache_enabled();
  return py::make_tuple(
      std::make_unique<AutocastRegion>(AutocastState(device, dtype, enabled, cache_enabled)),
      previous_enabled, previous_dtype, previous_cache_enabled);
}

}  // namespace

void bind_autocast(py::module_& module) {
  py::class_<AutocastRegion>(module, "AutocastRegion", "One entered autocast region.")
      .def("end", &AutocastRegion::end,
           "Leaves the region and restores the thread's settings. On the thread that entered it.");
  module.def("enter_autocast", torch::wrap_pybind_function(enter_autocast), py::arg("device_type"),
             py::arg("dtype"), py::arg("enabled").noconvert(), py::arg("cache_enabled").noconvert(),
             "Enters a region; returns it and the settings before it: enabled, dtype, "
             "cache_enabled.");
}

}  // namespace torchamp::python
