"""A pair whose engine claims every capability, one with a single slot and place, and the clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.conformance.llm.programs import (
    JS,
    PYTHON_COMMAND,
    SDKS,
    Program,
    install_npm,
    require_sdks,
    running,
)
from tests.support.pair import Pair, running_pair
from tests.support.processes import ROOT

CAPABILITIES = [
    "json_schema",
    "logprobs",
    "sampling.logit_bias",
    "stopping.ignore_eos",
    "stopping.min_tokens",
    "stopping.stop_token_ids",
]


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    service = {"engine_options": json.dumps({"capabilities": CAPABILITIES})}
    edge = {"keepalive": "250ms"}
    async with running_pair(tmp_path_factory.mktemp("pair"), service, edge) as started:
        yield started


@pytest.fixture(scope="package")
async def tiny(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """One runs, one waits, all else is refused."""
    service = {"engine_slots": "1", "queue_limit": "1"}
    async with running_pair(tmp_path_factory.mktemp("tiny"), service) as started:
        yield started


@pytest.fixture(scope="package")
async def python() -> AsyncIterator[Program]:
    require_sdks()
    async with running(PYTHON_COMMAND, ROOT) as program:
        yield program


@pytest.fixture(scope="package")
async def old_python() -> AsyncIterator[Program]:
    require_sdks()
    async with running([*PYTHON_COMMAND, str(SDKS / "old-anthropic")], ROOT) as program:
        yield program


@pytest.fixture(scope="package")
async def js() -> AsyncIterator[Program]:
    await install_npm()
    async with running(["node", "sdks.mjs"], JS) as program:
        yield program
