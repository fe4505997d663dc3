"""The exllamav2 engine keeps the engine port's contract, on the real library."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.adapters.engines.exllamav2.engine import ExLlamaV2Engine
from service.domain.request import Regex, TextPrompt
from service.ports.engine import Engine, Job
from tests.contract.engines.suite import EngineContract, Loaded, job, load
from tests.support.exllamav2.engines import random_ids, settings_for

_seeds = itertools.count(1000)


@pytest.fixture(scope="module")
def shared(model_folder: Path) -> Iterator[Loaded]:
    """Load one engine for all tests of the module."""
    found = load(ExLlamaV2Engine(settings_for(model_folder)))
    yield found
    found.engine.close()


class TestExLlamaV2Contract(EngineContract):
    """The suite, on the tiny model."""

    @pytest.fixture
    def loaded(self, shared: Loaded) -> Loaded:
        return shared

    @pytest.fixture
    def new_engine(self, model_folder: Path) -> Callable[[], Engine]:
        return lambda: ExLlamaV2Engine(settings_for(model_folder))

    @pytest.fixture
    def broken_engine(self, tmp_path: Path) -> Engine:
        return ExLlamaV2Engine(settings_for(tmp_path / "nowhere"))

    @pytest.fixture
    def prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        return random_ids(40, 7)

    @pytest.fixture
    def long_prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        return random_ids(1500, next(_seeds))

    @pytest.fixture
    def ending_job(self, engine: Engine) -> Job:
        return job(engine.prepare(TextPrompt("abcY")))

    @pytest.fixture
    def eos_texts(self) -> tuple[bytes, ...]:
        return (b"</s>", b"<|end|>")

    @pytest.fixture
    def failing_job(self, engine: Engine) -> Job:
        return replace(job(engine.prepare(TextPrompt("a"))), constraint=Regex("("))
