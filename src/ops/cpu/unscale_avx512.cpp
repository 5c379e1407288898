#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleAvx512 = kernels_for("AVX-512");

}  // namespace torchamp::cpu
