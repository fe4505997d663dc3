// The host half of exllamav2_ext: the sampler, the safetensors reader and the page matcher, each from the
// installed wheel's own sources. One translation unit, as parsing torch/extension.h takes most of the time.
#include <torch/extension.h>
#include <pybind11/stl.h>
#include <stdexcept>
#include "ext_sampling.cpp"
#include "ext_stloader.cpp"
#include "ext_cache.cpp"

// ext_cache.cpp refers to these kernels, which only quantised caches use.
#define NEEDS_CUDA(name, ...) \
    void name(__VA_ARGS__) { throw std::runtime_error(#name " needs a GPU"); }
typedef unsigned char byte_t;
NEEDS_CUDA(array_fp16_to_fp8_cuda, cudaStream_t, const half*, byte_t*, int, int, int, int)
NEEDS_CUDA(array_fp8_to_fp16_cuda, cudaStream_t, const byte_t*, half*, int, int, int, int)
NEEDS_CUDA(array_fp16_to_q_kv_cuda, cudaStream_t, const half*, byte_t*, half*, const half*, byte_t*, half*,
           int, int, int, int, int, int)
NEEDS_CUDA(array_q_to_fp16_kv_cuda, cudaStream_t, const byte_t*, const half*, half*, const byte_t*, const half*,
           half*, int, int, int, int, int, int)
NEEDS_CUDA(array_fp16_to_q_kv_paged_cuda, cudaStream_t, const half*, byte_t*, half*, const half*, byte_t*, half*,
           int, int, int, const int*, const int*, int, int, int)
NEEDS_CUDA(array_q_to_fp16_kv_paged_cuda, cudaStream_t, const byte_t*, const half*, half*, const byte_t*,
           const half*, half*, int, int, int, const int*, const int*, int, int)

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("apply_rep_penalty", &apply_rep_penalty);
    m.def("sample_basic", &sample_basic);
    m.def("logit_filter_exclusive", &logit_filter_exclusive);
    m.def("fast_fill_cpu_ones_bool", &fast_fill_cpu_ones_bool);
    m.def("fast_fadd_cpu", &fast_fadd_cpu);
    m.def("fast_copy_cpu", &fast_copy_cpu);
    m.def("partial_strings_match", &partial_strings_match);
    m.def("stloader_read", &stloader_read);
    m.def("tensor_remap", &tensor_remap);
    m.def("tensor_remap_4bit", &tensor_remap_4bit);
    m.def("count_match", &count_match);
}
