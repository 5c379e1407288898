#pragma once

// Test-only stand-in for the CUDA runtime, host side: what the launch code in src/ops/cuda calls.

#include <cstddef>

enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

struct CUstream_st;
using cudaStream_t = CUstream_st*;

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
