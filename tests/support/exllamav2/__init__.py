"""The real exllamav2 on a machine without a GPU, a tiny model for it, and logits that a test dictates.

Real here: configuration, tokenizer, modules, cache, page table, dynamic generator, jobs, filters and
the sampler, all unmodified; the host C++ is the wheel's own. Ours: torch versions of four CUDA
kernels (`kernels`), and the attention stand-in, which is the adapter's own product code.

Limits. Nothing here says anything about CUDA kernels, quantised weights (EXL2, GPTQ) and caches,
streams and graphs, several GPUs, flash-attn itself, or speed: that is `make gpu-check`.
"""
