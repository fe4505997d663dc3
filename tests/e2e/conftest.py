"""One pair of processes for all tests that neither kill it nor need settings of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.pair import Pair, running_pair


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    edge = {"keepalive": "250ms", "hold_after_done": "300ms"}
    async with running_pair(tmp_path_factory.mktemp("pair"), edge=edge) as running:
        yield running


@pytest.fixture(scope="package")
async def narrow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """A pair far from UTC, with one slot, leave to ping often, and a drain that no test waits for."""
    service = {"engine_slots": "1", "drain": "60s", "min_ping_interval": "500ms"}
    edge = {"keepalive": "100ms", "hold_after_done": "300ms", "drain_spread": "0s"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Kolkata")
        async with running_pair(tmp_path_factory.mktemp("narrow"), service, edge) as running:
            yield running
