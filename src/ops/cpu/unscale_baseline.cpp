#include "ops/cpu/unscale_kernels.inl"

namespace torchamp::cpu {

const UnscaleKernels kUnscaleBaseline = kernels_for("baseline");

}  // namespace torchamp::cpu
