#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pybind11/gil_safe_call_once.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torchamp::python {

/// Whether a tensor is strided memory on the CPU or a CUDA device and nothing else: not a subclass,
/// wrapper, fake, meta, sparse or quantized tensor, no conjugate or negative view, no freed
/// storage. Only such a tensor may be read through its data pointer.
inline bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet allowed =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                           c10::DispatchKey::ADInplaceOrView}) |
      c10::DispatchKeySet({c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit}) |
      c10::autocast_dispatch_keyset;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // By bits: the sets' own difference leaves backends in.
  if ((impl->key_set().raw_repr() & ~allowed.raw_repr()) != 0 || !tensor.has_storage() ||
      (impl->unsafe_storage().data() == nullptr && tensor.numel() != 0)) {
    return false;
  }
  PyObject* object = impl->pyobj_slot()->load_pyobj();
  return object == nullptr || THPVariable_CheckExact(object);
}

/// Whether a Python object is a plain tensor with one element of the given type, as scale, growth
/// tracker and flags are unless someone assigned something else.
inline bool is_plain_scalar(PyObject* object, at::ScalarType dtype) {
  if (!THPVariable_CheckExact(object)) {
    return false;
  }
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return is_plain(tensor) && tensor.scalar_type() == dtype && tensor.numel() == 1 &&
         !tensor.requires_grad();
}

/// Whether every active function mode is the one of `torch.set_default_device` and `with device:`.
/// It only matters to functions that make tensors without naming a device.
inline bool only_default_device_modes() {
  // Not a plain static: another thread would wait for its initialisation with the lock of the
  // interpreter that the import may let go of and need again.
  PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<pybind11::object> storage;
  const PyObject* const type =
      storage
          .call_once_and_store_result([] {
            return pybind11::object(
                pybind11::module_::import("torch.utils._device").attr("DeviceContext"));
          })
          .get_stored()
          .ptr();
  for (int64_t i = 0; i < at::impl::PythonTorchFunctionTLS::stack_len(); ++i) {
    PyObject* mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != type) {
      return false;
    }
  }
  return true;
}

/// Whether something watches or changes the operators that Python code calls: a dispatch mode (fake
/// tensors, tracing), a function mode, a functorch transform. It must see PyTorch's own operators.
inline bool any_mode_active() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         (at::impl::torch_function_mode_enabled() && !only_default_device_modes()) ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

}  // namespace torchamp::python
