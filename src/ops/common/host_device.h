#pragma once

// Marks functions that a CUDA kernel and the host share. Empty for a plain C++ compiler.
#if defined(__CUDACC__)
#define TORCHAMP_HOST_DEVICE __host__ __device__
#else
#define TORCHAMP_HOST_DEVICE
#endif
