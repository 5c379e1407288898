#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleAvx2 = kernels_for("AVX2");

}  // namespace torchamp::cpu
