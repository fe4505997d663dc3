"""One pair for the folder, and the npm client installed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conformance.replicate.js.npm_client import install
from tests.support.pair import LOOPBACK_WEBHOOKS, Pair, running_pair


@pytest.fixture(scope="session")
async def npm(anyio_backend: object) -> None:
    await install()


@pytest.fixture(scope="package")
async def pair(npm: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path_factory.mktemp("pair"), LOOPBACK_WEBHOOKS) as running:
        yield running
