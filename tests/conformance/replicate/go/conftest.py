"""One pair for the folder."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.pair import Pair, running_pair


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path_factory.mktemp("pair"), edge={"hold_after_done": "300ms"}) as running:
        yield running
