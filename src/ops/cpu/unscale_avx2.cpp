#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleAvx2 = kKernels;

}  // namespace torchamp::cpu
