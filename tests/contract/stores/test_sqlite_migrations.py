"""Files of earlier versions are brought up to date, and what was released stays as it was."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path

from service.adapters.stores import sqlite_schema
from service.adapters.stores.sqlite import SqliteStore
from tests.contract.stores.outbox_suite import ended, tried
from tests.contract.stores.samples import bounded

RELEASED = (
    "25079ad2ee8ae88df2314d264bd2e8930335ea75e864aa0aac5a6e5efe7cc9f4",
    "e5e9b967fa69b895ad79e1d5d78a9f1fbe5016629b171e32218c045144baac22",
)


def test_a_version_that_is_out_never_changes() -> None:
    """Files of it exist: what is new is a further version."""
    digests = tuple(hashlib.sha256("\n".join(m).encode()).hexdigest() for m in sqlite_schema.MIGRATIONS)
    assert digests == RELEASED


@bounded
async def test_calls_of_the_first_version_get_the_owners_of_their_predictions(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with SqliteStore(path) as store:
        for prediction_id, owner in (("p1", "ann"), ("p2", "bob"), ("p3", "")):
            await store.update(tried(await ended(store, prediction_id, owner=owner), 410))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("ALTER TABLE deliveries DROP COLUMN owner")
        connection.execute("PRAGMA user_version = 1")
    async with SqliteStore(path) as store:
        found = {owner: await store.given_up(9, owner=owner) for owner in ("ann", "bob", "eve")}
        assert {owner: [d.prediction_id for d in dead] for owner, dead in found.items()} == {
            "ann": ["p1"],
            "bob": ["p2"],
            "eve": [],
        }
        assert [d.owner for d in await store.given_up(9)] == ["", "bob", "ann"]
