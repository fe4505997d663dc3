"""One pair for all clients, quick to keep alive and to close."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.pair import MODEL, Pair, running_pair

DEPLOYMENTS = {"acme/chat": {"model": MODEL, "input": {"temperature": 0.5}, "limits": {"max_tokens": 1000}}}


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    edge = {"keepalive": "250ms", "hold_after_done": "300ms", "deployments": json.dumps(DEPLOYMENTS)}
    async with running_pair(tmp_path_factory.mktemp("pair"), edge=edge) as running:
        yield running
