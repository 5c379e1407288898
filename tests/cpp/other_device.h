#pragma once

#include <c10/core/Device.h>

// A device of the tests' own, that PyTorch knows nothing about: its tensors lie in the host's memory,
// and what an operator does to them the CPU does. torchamp has no kernels for it, and a list may be
// spread over it and the CPU on any machine. PyTorch's `backward` does not run on it where torch was built
// for CUDA and there is none.

namespace on_device {

at::Device other();

}  // namespace on_device
