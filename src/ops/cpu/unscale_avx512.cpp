#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleAvx512 = kKernels;

}  // namespace torchamp::cpu
