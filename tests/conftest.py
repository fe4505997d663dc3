"""Fixtures of all tests. Before anything else: gRPC's fork handlers are switched off, as `service` does."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import pytest
from hypothesis import settings

# How long one example takes is the machine's affair.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run async tests on asyncio: grpc.aio has no other. One for all, so that modules may share processes."""
    return "asyncio", {}
