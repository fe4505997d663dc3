"""`make gpu-check`: what only a CUDA machine can show of the exllamav2 engine, in under five minutes.

Kernels against each other and against recorded tokens, all cache types, the engine's tests on real
kernels, then speed: the bare library, the service around it, and what a cancel takes. Writes one JSON
file and one table. Without a GPU it is a dry run: the same steps on the CPU and the tiny model, where
what needs CUDA is listed as left out.
"""
