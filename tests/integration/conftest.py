"""One event loop for all integration tests, as in production: uvloop.

grpc.aio serves one loop a process: what it still has to say to a loop that a test has closed
fails in the next test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(scope="session", autouse=True)
async def _one_loop(anyio_backend: tuple[str, dict[str, Any]]) -> AsyncIterator[None]:
    """Hold the loop until the session ends."""
    yield
