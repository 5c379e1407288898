#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torchamp::python {

/// Whether a tensor is strided memory on the CPU or a CUDA device and nothing else: not a subclass,
/// wrapper, fake, meta, sparse or quantized tensor, no conjugate or negative view. Only such a
/// tensor may be read through its data pointer.
inline bool is_plain(const at::Tensor& tensor) {
  static const c10::DispatchKeySet allowed =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                           c10::DispatchKey::ADInplaceOrView}) |
      c10::DispatchKeySet({c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit}) |
      c10::autocast_dispatch_keyset;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  // By bits: the sets' own difference leaves backends in.
  if ((impl->key_set().raw_repr() & ~allowed.raw_repr()) != 0 || !tensor.has_storage()) {
    return false;
  }
  PyObject* object = impl->pyobj_slot()->load_pyobj();
  return object == nullptr || THPVariable_CheckExact(object);
}

/// Whether something watches or changes the operators that Python code calls: a dispatch mode (fake
/// tensors, tracing), a function mode, a functorch transform. It must see PyTorch's own operators.
inline bool any_mode_active() {
  return c10::impl::TorchDispatchModeTLS::any_modes_set() ||
         at::impl::torch_function_mode_enabled() ||
         c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

}  // namespace torchamp::python
