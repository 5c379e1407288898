#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleBaseline = kKernels;

}  // namespace torchamp::cpu
