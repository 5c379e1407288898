#pragma once

#include <pybind11/pybind11.h>

// Each file of bindings fills one part of the module torchamp._C.

namespace torchamp::python {

void bind_autocast(pybind11::module_& module);
void bind_grad_scaler(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);

}  // namespace torchamp::python
