// The names of the CUDA runtime that the wheel's host sources mention. Every call fails: none may run.
#pragma once
#include <cstddef>
#include <stdexcept>
struct CUstream_st;
typedef CUstream_st* cudaStream_t;
typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorNotSupported = 801 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1 };
inline cudaError_t cudaSetDevice(int) { return cudaErrorNotSupported; }
inline cudaError_t cudaDeviceSynchronize() { return cudaErrorNotSupported; }
inline cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
    return cudaErrorNotSupported;
}
inline const char* cudaGetErrorString(cudaError_t) { return "this build has no CUDA"; }
