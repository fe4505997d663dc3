"""SqliteStore keeps the store port's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from service.adapters.stores.sqlite import SqliteStore
from service.ports.store import Appended, PredictionStore
from tests.contract.stores.samples import bounded, output, started
from tests.contract.stores.suite import DurableStoreContract, Opener

pytestmark = pytest.mark.anyio


class TestSqliteStore(DurableStoreContract):
    """The suite, on a file."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[PredictionStore]:
        async with SqliteStore(tmp_path / "store.db") as store:
            yield store

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Opener:
        return partial(SqliteStore, tmp_path / "store.db")


@bounded
async def test_9_a_record_read_in_mid_stream_is_the_fold_of_its_whole_log(tmp_path: Path) -> None:
    """Output appends leave the row alone, so what is read must be folded from the entries."""
    async with SqliteStore(tmp_path / "tailrace.db") as store:
        writer = await started(store, "p")
        for text in ("one", "two", "three"):
            assert await store.append([writer.append(output(text))]) == (Appended.OK,)
        expected = writer.record
        assert expected.usage.output_tokens == 3 and expected.first_output_at is not None
        assert await store.find("p") == expected
        assert await store.unfinished() == (expected,)
        assert (await store.list(limit=5)).predictions == (expected,)
        assert await store.claim("p") == replace(expected, epoch=expected.epoch + 1)
