"""One pair for the folder, and the programs of `.venv-callers`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.conformance.callers.programs import Py2, require_callers, running_py2
from tests.support.pair import MODEL, Pair, running_pair

DEPLOYMENTS = {"acme/chat": {"model": MODEL, "input": {"temperature": 0.5}}}


@pytest.fixture(scope="session", autouse=True)
def _callers() -> None:
    require_callers()


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    edge = {"hold_after_done": "300ms", "deployments": json.dumps(DEPLOYMENTS)}
    async with running_pair(tmp_path_factory.mktemp("pair"), edge=edge) as running:
        yield running


@pytest.fixture(scope="package")
async def py2(anyio_backend: object) -> AsyncIterator[Py2]:
    async with running_py2() as client:
        yield client
