#pragma once
#include <cuda_runtime.h>
namespace at { namespace cuda {
struct NoStream { cudaStream_t stream() const { return nullptr; } };
inline NoStream getCurrentCUDAStream(int = 0) { return {}; }
} }
