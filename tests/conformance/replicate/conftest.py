"""One pair for all clients, quick to keep alive and to close."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.pair import Pair, running_pair


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    edge = {"keepalive": "250ms", "hold_after_done": "300ms"}
    async with running_pair(tmp_path_factory.mktemp("pair"), edge=edge) as running:
        yield running
