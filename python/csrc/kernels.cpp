#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "bindings.h"
#include "ops/aten_override.h"
#include "ops/cpu/unscale_kernels.h"

namespace py = pybind11;

namespace torchamp::python {

namespace {

std::vector<std::string> native_kernels() {
  std::vector<std::string> names;
  for (const c10::DispatchKey key : detail::native_kernel_keys()) {
    names.emplace_back(c10::toString(key));
  }
  return names;
}

std::string cpu_instruction_set() { return cpu::unscale_kernels().instruction_set; }

}  // namespace

void bind_kernels(py::module_& module) {
  module.def("native_kernels", torch::wrap_pybind_function(native_kernels),
             "Dispatch keys that this build has kernels of its own for.");
  module.def("cpu_instruction_set", torch::wrap_pybind_function(cpu_instruction_set),
             "The instruction set of the CPU kernels that were chosen for this processor.");
  module.def("install_kernels", torch::wrap_pybind_function(detail::install_aten_kernels),
             "Puts these kernels under PyTorch's operators of the GradScaler.");
  module.def("uninstall_kernels", torch::wrap_pybind_function(detail::uninstall_aten_kernels),
             "Undoes one install_kernels.");
}

}  // namespace torchamp::python
