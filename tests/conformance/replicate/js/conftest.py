"""Replicate's own npm client, installed before any test of this folder."""

from __future__ import annotations

import pytest

from tests.conformance.replicate.js.npm_client import install


@pytest.fixture(scope="package", autouse=True)
async def npm(anyio_backend: object) -> None:
    await install()
