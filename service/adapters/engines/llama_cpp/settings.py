"""What the llama.cpp engine is told at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LlamaCppSettings:
    """One model and how it runs."""

    model_path: Path
    """A GGUF file."""
    slots: int = 8
    """Jobs at the same time, 1 to 256."""
    context_tokens: int = 2048
    """Prompt + output tokens of one slot; memory is reserved for all slots."""
    threads: int | None = None
    """Compute threads; None is one per processor this process may use."""
    batch_tokens: int = 32
    """Prompt tokens computed at a time, between two looks at cancellation and at other jobs' tokens.

    On a GPU larger ones are faster. On the CPU keep it below 64: from there llama.cpp's attention
    takes another path, whose rounding differs from that of single tokens. Greedy text then depends
    on how a prompt was split, and a continuation may leave the uninterrupted text.
    """
    cache_prompts: bool = True
    """Keep a slot's prompt and reuse what the next one begins with alike."""
    gpu_layers: int = -1
    """Layers put on a GPU where the build has one; -1 is the library's own choice."""
    chat_template: Path | None = None
    """A Jinja file in the place of the model's own template."""
    sha256: str = ""
    """The file's digest in hex; checked at load when set."""
