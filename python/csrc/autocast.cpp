#include <ATen/autocast_mode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/python_strings.h>
#include <torchamp/autocast.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

// Plain functions of Python's own interface: a region is entered and left in every iteration, and
// what pybind11 adds to a call costs as much as the call.

namespace torchamp::python {

namespace {

struct Entry {
  THPObjectPtr region;
  std::unique_ptr<AutocastGuard> guard;
};

/// The regions that a thread has entered and not left, innermost last. Those that a thread leaves
/// behind when it ends have nothing to restore, and Python may be gone by then.
struct Entries {
  Entries() = default;
  Entries(const Entries&) = delete;
  Entries& operator=(const Entries&) = delete;
  ~Entries() {
    for (Entry& entry : stack) {
      static_cast<void>(entry.region.release());
      static_cast<void>(entry.guard.release());
    }
  }

  std::vector<Entry> stack;
};

std::vector<Entry>& entries() {
  static thread_local Entries of_this_thread;
  return of_this_thread.stack;
}

PyObject* enter_autocast(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 5 && THPUtils_checkString(args[1]) && THPDtype_Check(args[2]) &&
                       PyBool_Check(args[3]) && PyBool_Check(args[4]),
                   "autocast needs a device type (str), a dtype, and bools for enabled and "
                   "cache_enabled");
  // "cuda:0" is accepted as in torch, the index has no meaning.
  const c10::DeviceType device = c10::Device(THPUtils_unpackString(args[1])).type();
  const at::ScalarType dtype = reinterpret_cast<THPDtype*>(args[2])->scalar_type;
  const bool was_enabled = at::autocast::is_autocast_enabled(device);
  const at::ScalarType previous_dtype = at::autocast::get_autocast_dtype(device);
  const bool was_cache_enabled = at::autocast::is_autocast_cache_enabled();
  THPObjectPtr previous(
      PyTuple_Pack(3, was_enabled ? Py_True : Py_False,
                   reinterpret_cast<PyObject*>(torch::getTHPDtype(previous_dtype)),
                   was_cache_enabled ? Py_True : Py_False));
  if (previous.get() == nullptr) {
    return nullptr;
  }
  auto guard = std::make_unique<AutocastGuard>(
      AutocastState(device, dtype, args[3] == Py_True, args[4] == Py_True));
  Py_INCREF(args[0]);
  entries().push_back({THPObjectPtr(args[0]), std::move(guard)});
  return previous.release();
  END_HANDLE_TH_ERRORS
}

PyObject* exit_autocast(PyObject* /*module*/, PyObject* region) {
  HANDLE_TH_ERRORS
  std::vector<Entry>& stack = entries();
  const auto found = std::find_if(stack.rbegin(), stack.rend(), [region](const Entry& entry) {
    return entry.region.get() == region;
  });
  if (found == stack.rend()) {
    Py_RETURN_FALSE;
  }
  // Out of the stack before anything else runs: freeing what the region held may run Python code.
  const Entry entry = std::move(*found);
  stack.erase(std::next(found).base());
  entry.guard->end();
  Py_RETURN_TRUE;
  END_HANDLE_TH_ERRORS
}

// METH_FASTCALL functions have another signature than the type says; CPython casts back by the flag.
PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

void bind_autocast(pybind11::module_& module) {
  static PyMethodDef functions[] = {
      {"enter_autocast", fast(enter_autocast), METH_FASTCALL,
       "enter_autocast(region: object, device_type: str, dtype: torch.dtype, enabled: bool, "
       "cache_enabled: bool)\n"
       "Enters a region on this thread, in the name of an object that may be in others already. "
       "Returns the settings before it: enabled, dtype, cache_enabled."},
      {"exit_autocast", exit_autocast, METH_O,
       "exit_autocast(region: object)\n"
       "Leaves the innermost region of this object on this thread and restores the settings. "
       "Returns False if there is none."},
      {nullptr, nullptr, 0, nullptr}};
  if (PyModule_AddFunctions(module.ptr(), functions) != 0) {
    throw pybind11::error_already_set();
  }
}

}  // namespace torchamp::python
