"""Which adapter a name stands for. Each is imported only when it is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import cast

import msgspec

from service.ports.engine import Engine, EngineLoadError

_ADAPTERS = {
    "llama_cpp": ("LlamaCppEngine", "LlamaCppSettings"),
    "exllamav2": ("ExLlamaV2Engine", "ExLlamaV2Settings"),
    "scripted": ("ScriptedEngine", "ScriptedSettings"),
}
"""Engine → its class and its settings dataclass in `service.adapters.engines.<engine>.engine`."""


def build_engine(engine: str, settings: Mapping[str, object]) -> Engine:
    """Return the unloaded adapter. Raises `EngineLoadError` for a wrong name, setting or install."""
    names = _ADAPTERS.get(engine)
    if names is None:
        raise EngineLoadError(f"there is no engine named {engine!r}; there are {', '.join(_ADAPTERS)}")
    try:
        module = importlib.import_module(f"service.adapters.engines.{engine}.engine")
    except ImportError as error:
        raise EngineLoadError(
            f"the engine {engine} is not installed ({error}); install the extra of that name"
        ) from error
    adapter, kind = (getattr(module, name) for name in names)
    return cast(Engine, adapter(_convert(settings, kind)))


def _convert(settings: Mapping[str, object], kind: type) -> object:
    unknown = set(settings) - {field.name for field in dataclasses.fields(kind)}
    if unknown:
        raise EngineLoadError(f"unknown engine settings: {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(dict(settings), kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise EngineLoadError(f"the engine settings are wrong: {error}") from error


def _path(kind: type, value: object) -> object:
    """Paths travel as strings."""
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise ValueError(f"cannot make a {kind.__name__}")
