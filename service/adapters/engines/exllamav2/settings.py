"""What the exllamav2 engine is told at start, and the bounds of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.ports.engine import EngineLoadError

PAGE_TOKENS = 256
"""The library's cache page; also flash-attn's smallest."""
MAX_STEP_TOKENS = 8
"""Tokens of one job in one decode step: the sampled one and what was drafted (the library's `max_q_size`)."""

CacheType = Literal["fp16", "q8", "q6", "q4"]
AttentionChoice = Literal["auto", "flash_attn", "torch", "torch_paged"]


@dataclass(frozen=True, slots=True)
class ExLlamaV2Settings:
    """One model folder and how it runs."""

    model_path: Path
    """A folder with config.json, tokenizer.json and .safetensors files: EXL2, GPTQ or fp16."""
    chat_template: Path | None = None
    """A Jinja file in the place of the model's own template."""
    slots: int = 8
    """Jobs in one batch, 1 to 256."""
    context_tokens: int = 2048
    """Prompt + output tokens of one job; cut to what the model was made for, unless a RoPE scaling is set."""
    batch_tokens: int = 2048
    """Prompt tokens computed in one step, between two tokens of the other jobs: 256 to 16,384, rounded up to
    pages. Smaller: other streams wait less for a long prompt, which itself takes longer."""
    cache_tokens: int = 0
    """Tokens of all jobs together for which memory is reserved, rounded up to pages of 256. 0: slots times
    context_tokens. With less, jobs wait until pages are free; at least one context is needed."""
    cache_type: CacheType = "fp16"
    """How keys and values are kept: relative to fp16, `q8` takes 0.53 of the memory, `q6` 0.41, `q4` 0.28."""
    attention: AttentionChoice = "auto"
    """`auto`: flash-attn where it is installed and the GPU has it, else `torch`. See attention.py."""
    gpu_split_gb: tuple[float, ...] = ()
    """Gigabytes of each GPU for weights and cache, in device order. Empty: filled one after another."""
    gpu_reserve_mb: tuple[int, ...] = ()
    """Without a split: megabytes left free on each GPU. Empty: the library's own 192 on the first."""
    cuda_graphs: bool = True
    """Off, some launch overhead returns; for finding faults."""
    rope_scale: float = 1.0
    """Linear RoPE scaling, above 0: positions are divided by it. 1: as config.json says."""
    rope_alpha: float = 1.0
    """NTK scaling of the RoPE base, at least 1. 1: none."""
    yarn_factor: float = 0.0
    """YaRN: context length divided by the original one, above 1. 0: as config.json says."""
    yarn_original_tokens: int = 0
    """The context the model was trained for; needed with yarn_factor."""
    draft_model_path: Path | None = None
    """A smaller model with the same vocabulary, to propose tokens. It gets a cache of its own."""
    ngram_draft: bool = False
    """Propose tokens from what the job's own text repeats. Not together with a draft model."""
    draft_tokens: int = 4
    """Tokens proposed at a time, 1 to 7; used only with one of the two above."""
    lora_paths: tuple[Path, ...] = ()
    """LoRA folders (safetensors), applied to every job."""
    lora_scale: float = 1.0
    """Strength of every LoRA."""
    warm_up: bool = True
    """Generate a few tokens at load, so that kernels are tuned before the first caller."""

    @property
    def chunk_tokens(self) -> int:
        """Return `batch_tokens` in whole pages."""
        return pages(self.batch_tokens) * PAGE_TOKENS

    @property
    def drafted_tokens(self) -> int:
        """Return how many tokens a step may hold beyond the sampled one."""
        return self.draft_tokens if self.draft_model_path is not None or self.ngram_draft else 0

    @property
    def rope_scaled(self) -> bool:
        """Whether the context is stretched beyond config.json."""
        return self.rope_scale != 1 or self.rope_alpha != 1 or self.yarn_factor > 0

    def check(self) -> None:
        """Raise EngineLoadError naming every setting out of its bounds."""
        if problems := "; ".join(self._problems()):
            raise EngineLoadError(f"engine settings: {problems}")

    def _problems(self) -> Iterator[str]:
        if not 1 <= self.slots <= 256:
            yield "slots must be 1 to 256"
        if not 16 <= self.context_tokens <= 1_048_576:
            yield "context_tokens must be 16 to 1048576"
        if not 16 <= self.batch_tokens <= 16_384:
            yield "batch_tokens must be 16 to 16384"
        if self.cache_tokens < 0:
            yield "cache_tokens must be 0 or more"
        if not 1 <= self.draft_tokens < MAX_STEP_TOKENS:
            yield f"draft_tokens must be 1 to {MAX_STEP_TOKENS - 1}"
        if self.draft_model_path is not None and self.ngram_draft:
            yield "draft_model_path and ngram_draft exclude each other"
        if not (math.isfinite(self.rope_scale) and self.rope_scale > 0):
            yield "rope_scale must be above 0"
        if not (math.isfinite(self.rope_alpha) and self.rope_alpha >= 1):
            yield "rope_alpha must be at least 1"
        if self.yarn_factor and not (self.yarn_factor > 1 and self.yarn_original_tokens > 0):
            yield "yarn_factor must be above 1 and comes with yarn_original_tokens"
        if not all(math.isfinite(gb) and gb > 0 for gb in self.gpu_split_gb):
            yield "gpu_split_gb must hold gigabytes above 0"
        if any(mb < 0 for mb in self.gpu_reserve_mb):
            yield "gpu_reserve_mb must hold megabytes of 0 or more"
        if self.gpu_split_gb and self.gpu_reserve_mb:
            yield "gpu_split_gb and gpu_reserve_mb exclude each other"


def pages(tokens: int) -> int:
    """Return how many pages hold so many tokens."""
    return -(-tokens // PAGE_TOKENS)
