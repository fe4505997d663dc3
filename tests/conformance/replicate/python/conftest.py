"""One pair for the whole folder, and Replicate's own Python client pointed at it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import replicate

from tests.conformance.replicate.python.wire import Wire, replicate_client
from tests.support.pair import MODEL, Pair, running_pair

KEEPALIVE_S = 0.25
DEPLOYMENTS = {"acme/chat": {"model": MODEL, "input": {"temperature": 0.5}, "limits": {"max_tokens": 1000}}}


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    folder: Path = tmp_path_factory.mktemp("pair")
    edge = {"keepalive": f"{KEEPALIVE_S}", "hold_after_done": "300ms", "deployments": json.dumps(DEPLOYMENTS)}
    async with running_pair(folder, edge=edge) as running:
        yield running


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def py1(pair: Pair, wire: Wire) -> Iterator[replicate.Client]:
    with replicate_client(pair.edge.url, wire) as client:
        yield client
