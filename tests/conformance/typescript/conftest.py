"""The TypeScript client's packages, installed before any test of this folder."""

from __future__ import annotations

import pytest

from tests.support.npm import TYPESCRIPT, install


@pytest.fixture(scope="package", autouse=True)
async def npm(anyio_backend: object) -> None:
    await install(TYPESCRIPT)
