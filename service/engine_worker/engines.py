"""Which adapter a name stands for. Each is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from service.ports.engine import Engine, EngineLoadError

_Settings = TypeVar("_Settings")


def build_engine(engine: str, settings: Mapping[str, object]) -> Engine:
    """Return the unloaded adapter. Raises `EngineLoadError` for a wrong name, setting or install."""
    try:
        return _build(engine, settings)
    except ImportError as error:
        raise EngineLoadError(
            f"the engine {engine} is not installed ({error}); install the extra of that name"
        ) from error


def _build(engine: str, settings: Mapping[str, object]) -> Engine:
    match engine:
        case "scripted":
            from service.adapters.engines.scripted.engine import ScriptedEngine, ScriptedSettings

            return ScriptedEngine(_settings(ScriptedSettings, settings))
        case _:
            raise EngineLoadError(f"there is no engine named {engine!r}; there is: scripted")


def _settings(kind: type[_Settings], settings: Mapping[str, object]) -> _Settings:
    unknown = set(settings) - {field.name for field in msgspec.inspect.type_info(kind).fields}  # type: ignore[attr-defined]  # a dataclass has fields
    if unknown:
        raise EngineLoadError(f"unknown engine settings: {', '.join(sorted(unknown))}")
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        raise EngineLoadError(f"the engine settings are wrong: {error}") from error
