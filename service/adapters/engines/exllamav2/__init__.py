"""The engine port on exllamav2: EXL2, GPTQ and fp16 models on a GPU, batched by pages."""
