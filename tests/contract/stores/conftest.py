"""What all store tests share."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio, as the service does."""
    return "asyncio"
