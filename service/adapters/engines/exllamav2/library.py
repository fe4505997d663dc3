"""Load a model with exllamav2: the one place that sets the library's switches.

Call `attention_import.import_library()` first. Whatever the library would choose by itself and that
changes what a job gets is set here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from exllamav2 import (
    ExLlamaV2,
    ExLlamaV2Cache,
    ExLlamaV2Cache_Q4,
    ExLlamaV2Cache_Q6,
    ExLlamaV2Cache_Q8,
    ExLlamaV2Config,
    ExLlamaV2Lora,
)
from exllamav2.generator import ExLlamaV2DynamicGenerator

from service.adapters.engines.exllamav2 import attention
from service.adapters.engines.exllamav2.model_files import ModelFiles, open_folder, read_model_files
from service.adapters.engines.exllamav2.settings import (
    MAX_STEP_TOKENS,
    PAGE_TOKENS,
    ExLlamaV2Settings,
    pages,
)
from service.ports.engine import EngineLoadError

_CACHES = {"fp16": ExLlamaV2Cache, "q8": ExLlamaV2Cache_Q8, "q6": ExLlamaV2Cache_Q6, "q4": ExLlamaV2Cache_Q4}
_NGRAM = 4
"""Longest repetition that n-gram speculation looks at: the library's default."""
_SAMPLING_THREADS = 16
_SAMPLING_THREADS_FROM = 3
Progress = Callable[[float], None]


@dataclass(slots=True)
class Library:
    """A loaded model and its generator, in the library's own types."""

    generator: Any
    model: Any
    draft_model: Any
    attention: str
    """What is in use, for people."""
    context_tokens: int
    """Prompt and output of one job that are sure to fit."""
    vocabulary_size: int
    row_size: int
    """Numbers in a row of logits."""

    def unload(self) -> None:
        """Give the memory back."""
        for model in (self.model, self.draft_model):
            if model is not None:
                model.unload()
        self.generator = self.model = self.draft_model = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


class QuietTokenizer:
    """What the generator asks of a tokenizer, without texts.

    With texts it would hold tokens back while their text looks incomplete, decoding all of them
    anew at every step; ours are made from bytes elsewhere.
    """

    def __init__(self, size: int, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self._size = size
        self._pieces = [""] * size

    def get_vocab_size(self) -> int:
        """Return how many ids may be drawn."""
        return self._size

    def get_id_to_piece_list(self, include_special_tokens: bool = False) -> list[str]:
        """Return no text for every token."""
        return self._pieces


def load(
    settings: ExLlamaV2Settings,
    files: ModelFiles,
    vocabulary_size: int,
    eos: tuple[int, ...],
    progress: Progress,
) -> Library:
    """Load everything. Raises EngineLoadError that says what to do."""
    try:
        return _load(settings, files, vocabulary_size, eos, progress)
    except torch.OutOfMemoryError as error:
        raise EngineLoadError(
            "the GPU's memory does not hold the model and its cache: lower cache_tokens or slots, choose a "
            "smaller cache_type, or a model with fewer bits"
        ) from error
    except (AssertionError, ValueError, TypeError, KeyError, RuntimeError, OSError) as error:
        raise EngineLoadError(
            f"exllamav2 cannot load {files.folder}: {type(error).__name__}: {error}"
        ) from error


def _load(
    settings: ExLlamaV2Settings,
    files: ModelFiles,
    vocabulary_size: int,
    eos: tuple[int, ...],
    progress: Progress,
) -> Library:
    in_use = attention.choose(settings.attention)
    config, native = _config(files, settings)
    step_extra = settings.drafted_tokens
    cache_tokens = pages(settings.cache_tokens or settings.slots * settings.context_tokens) * PAGE_TOKENS
    context = min(settings.context_tokens, cache_tokens - step_extra)
    if not settings.rope_scaled:
        context = min(context, native)
    if context < 2:
        raise EngineLoadError("cache_tokens leaves no room for a prompt: it needs at least one page of 256")
    # Positions are read from a table of this length, without a check on the GPU.
    config.max_seq_len = context + step_extra
    if vocabulary_size > config.vocab_size:
        vocabulary_size = config.vocab_size
    model = ExLlamaV2(config)
    cache = _load_weights(model, settings, cache_tokens, lambda done: progress(0.9 * done))
    draft, draft_cache = _draft(settings, config.max_seq_len, cache_tokens)
    generator = ExLlamaV2DynamicGenerator(
        model=model,
        cache=cache,
        tokenizer=QuietTokenizer(vocabulary_size, eos[0] if eos else -1),
        draft_model=draft,
        draft_cache=draft_cache,
        max_batch_size=settings.slots,
        max_chunk_size=settings.chunk_tokens,
        max_q_size=MAX_STEP_TOKENS,
        num_draft_tokens=settings.draft_tokens,
        use_ngram_draft=settings.ngram_draft,
        max_ngram=_NGRAM,
        max_sampling_threads=_SAMPLING_THREADS,
        min_sampling_threads=_SAMPLING_THREADS_FROM,
        paged=True,
    )
    if settings.lora_paths:
        generator.set_loras([_lora(model, path, settings.lora_scale) for path in settings.lora_paths])
    progress(0.95)
    sys.stderr.write(
        f"exllamav2: {files.folder.name}, attention {in_use}, cache {settings.cache_type} of {cache_tokens} "
        f"tokens, context {context}, batch {settings.slots}\n"
    )
    return Library(generator, model, draft, in_use, context, vocabulary_size, generator.padded_vocab_size)


def _config(files: ModelFiles, settings: ExLlamaV2Settings) -> tuple[Any, int]:
    """Return the library's config and the context that the model was made for."""
    with open_folder(files) as folder:
        config = ExLlamaV2Config(str(folder))
        config.arch_compat_overrides()
    if files.changed:  # tensors are found through the links; their real places outlive the folder
        config.model_dir = str(files.folder)
        config.tensor_files = [str(files.folder / Path(name).name) for name in config.tensor_files]
        config.tensor_file_map = {
            key: str(files.folder / Path(name).name) for key, name in config.tensor_file_map.items()
        }
    named = files.config["architectures"][0]
    if config.arch.arch_string != named:
        raise EngineLoadError(
            f"exllamav2 does not know the architecture {named}, and would run it as a Llama: name another"
        )
    if config.no_flash_attn:
        raise EngineLoadError(f"exllamav2 runs {named} without batching only, which is not supported here")
    config.max_batch_size = 1
    config.max_input_len = max(settings.chunk_tokens, pages(settings.slots * MAX_STEP_TOKENS) * PAGE_TOKENS)
    config.max_attention_size = config.max_input_len**2
    config.max_output_len = None
    config.no_graphs = not settings.cuda_graphs
    native = int(config.max_seq_len)
    if settings.rope_scale != 1:
        config.scale_pos_emb = settings.rope_scale
    if settings.rope_alpha != 1:
        config.scale_alpha_value = settings.rope_alpha
    if settings.yarn_factor:
        config.alt_rope_method = "yarn"
        config.yarn_rope_factor = settings.yarn_factor
        config.yarn_rope_original_max_position_embeddings = settings.yarn_original_tokens
    return config, native


def _load_weights(model: Any, settings: ExLlamaV2Settings, cache_tokens: int, progress: Progress) -> Any:
    def report(done: int, total: int) -> None:
        progress(done / max(total, 1))

    kind = _CACHES[settings.cache_type]
    if settings.gpu_split_gb or not torch.cuda.is_available():
        model.load(gpu_split=list(settings.gpu_split_gb) or None, callback=report)
        return kind(model, batch_size=1, max_seq_len=cache_tokens)
    cache = kind(model, batch_size=1, max_seq_len=cache_tokens, lazy=True)
    reserve = [mb * 1024**2 for mb in settings.gpu_reserve_mb] or None
    model.load_autosplit(cache, reserve_vram=reserve, callback=report)
    return cache


def _draft(settings: ExLlamaV2Settings, max_seq_len: int, cache_tokens: int) -> tuple[Any, Any]:
    if settings.draft_model_path is None:
        return None, None
    config, _ = _config(read_model_files(settings.draft_model_path), settings)
    config.max_seq_len = max_seq_len
    draft = ExLlamaV2(config)
    return draft, _load_weights(draft, settings, cache_tokens, lambda done: None)


def _lora(model: Any, path: Path, scale: float) -> Any:
    if not (path / "adapter_model.safetensors").is_file() or (path / "adapter_model.bin").exists():
        raise EngineLoadError(
            f"{path} must hold adapter_model.safetensors, and no adapter_model.bin, which is code"
        )
    return ExLlamaV2Lora.from_directory(model, str(path), scale)
