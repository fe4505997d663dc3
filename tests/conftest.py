"""Fixtures of all tests. Before anything else: gRPC's fork handlers are switched off, as `service` does.

Examples of properties have no deadline of their own, which a busy machine would miss: tests have a timeout.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import hypothesis
import pytest
from hypothesis import HealthCheck, settings

# No test fails because the machine was busy.
settings.register_profile("tailrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tailrace")

hypothesis.settings.register_profile("tailrace", deadline=None)
hypothesis.settings.load_profile("tailrace")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Run async tests on asyncio: grpc.aio has no other. One for all, so that modules may share processes."""
    return "asyncio", {}
