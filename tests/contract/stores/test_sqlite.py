"""SqliteStore keeps the store port's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from service.adapters.stores.sqlite import SqliteStore
from service.ports.store import PredictionStore
from tests.contract.stores.outbox_suite import OutboxContract
from tests.contract.stores.suite import Opener, StoreContract

pytestmark = pytest.mark.anyio


class TestSqliteStore(StoreContract, OutboxContract):
    """The suite, on a file."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[PredictionStore]:
        async with SqliteStore(tmp_path / "store.db") as store:
            yield store

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Opener:
        return partial(SqliteStore, tmp_path / "store.db")
