"""The first import of exllamav2, also beside a flash-attn that it cannot use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def import_library() -> None:
    """Import exllamav2, also where a `flash_attn` that it cannot use would make that fail."""
    with _without_unusable_flash_attn():
        importlib.import_module("exllamav2")


@contextmanager
def _without_unusable_flash_attn() -> Iterator[None]:
    """Hide a `flash_attn` without a version: flash-attn 4 alone is one, and attn.py dies of it."""
    if "flash_attn" in sys.modules:
        yield
        return
    try:
        usable = hasattr(importlib.import_module("flash_attn"), "__version__")
    except ImportError:  # absent, or built for another torch: the library would not catch the latter
        usable = False
    if usable:
        yield
        return
    hidden = sys.modules.pop("flash_attn", None)
    sys.modules["flash_attn"] = None  # type: ignore[assignment]  # how Python spells "not importable"
    try:
        yield
    finally:
        del sys.modules["flash_attn"]
        if hidden is not None:
            sys.modules["flash_attn"] = hidden
