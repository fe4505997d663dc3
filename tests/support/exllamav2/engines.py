"""Loaded adapters over the tiny model, and a look at what is behind one."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.adapters.engines.exllamav2.engine import ExLlamaV2Engine
from service.adapters.engines.exllamav2.library import Library
from service.adapters.engines.exllamav2.settings import ExLlamaV2Settings
from service.domain.stop import TextAssembler
from service.ports.engine import EngineInfo
from tests.contract.engines.recorder import Recorder
from tests.support.exllamav2 import tiny_model


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A loaded engine."""

    engine: ExLlamaV2Engine
    info: EngineInfo

    @property
    def library(self) -> Library:
        """Return the library's own objects behind the engine."""
        return self.engine._library

    @property
    def pages_free(self) -> int:
        """Return the pages that no job holds. True when the engine is idle."""
        return self.engine._generator.pages_free


def settings_for(folder: Path, **changes: Any) -> ExLlamaV2Settings:
    """Return settings for the tiny model: four slots, prompts in chunks of one page."""
    base = ExLlamaV2Settings(folder, slots=4, batch_tokens=256, warm_up=False)
    return dataclasses.replace(base, **changes)


@contextmanager
def opened(folder: Path, **changes: Any) -> Iterator[Opened]:
    """Load an engine and close it."""
    engine = ExLlamaV2Engine(settings_for(folder, **changes))
    try:
        yield Opened(engine, engine.load(lambda fraction: None))
    finally:
        engine.close()


def random_ids(count: int, seed: int) -> tuple[int, ...]:
    """Return a prompt of ordinary tokens after a BOS, the same everywhere."""
    numbers = random.Random(seed)
    size = len(tiny_model.vocabulary())
    ids = (numbers.randrange(len(tiny_model.SPECIAL), size) for _ in range(count - 1))
    return (tiny_model.BOS, *ids)


def said(recorder: Recorder, stop: Sequence[str] = ()) -> tuple[str, str | int | None]:
    """Return a job's text as the service makes it of the pieces, and what stopped it."""
    assembler = TextAssembler(stop)
    released = [assembler.feed(event.piece) for event in recorder.pieces]
    released.append(assembler.finish())
    parts = [part for part in released if part is not None]
    matched = next((part.matched_stop for part in parts if part.matched_stop is not None), None)
    return "".join(part.text for part in parts), matched
