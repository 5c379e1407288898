#include "bindings.h"

// Conversions and calls only: what the functions do is in the C++ library, so that C++ and Python
// programs run the same code. Users import the names of the package `torchamp`, not these.
PYBIND11_MODULE(_C, module) {
  torchamp::python::bind_autocast(module);
  torchamp::python::bind_grad_scaler(module);
  torchamp::python::bind_kernels(module);
}
