#pragma once
#include <c10/core/Device.h>
#include <c10/util/Optional.h>
namespace at { namespace cuda {
struct OptionalCUDAGuard { template <class T> explicit OptionalCUDAGuard(T&&) {} };
} }
