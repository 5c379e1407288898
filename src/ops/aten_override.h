#pragma once

#include <c10/core/DispatchKey.h>
#include <torchamp/export.h>

#include <vector>

// The kernels of this library under PyTorch's own names, for code that calls
// aten::_amp_foreach_non_finite_check_and_unscale_ and aten::_amp_update_scale_, such as the
// GradScaler of torch.amp.

namespace torchamp::detail {

/// The dispatch keys that have a kernel of ours, not the fallback: that one calls PyTorch's
/// operators and would call itself for ever.
TORCHAMP_API std::vector<c10::DispatchKey> native_kernel_keys();

/// Overrides the two operators for these keys, for the whole process. Calls are counted: each needs
/// an `uninstall_aten_kernels`. Safe to call from several threads at once, but not while another
/// thread runs one of the operators.
TORCHAMP_API void install_aten_kernels();

/// Undoes one `install_aten_kernels`; the last one brings back the kernels that were there before.
/// Throws c10::Error if nothing is installed.
TORCHAMP_API void uninstall_aten_kernels();

}  // namespace torchamp::detail
