"""The statements behind the store port, run one call at a time on the connection's thread.

Owns SQL and the heads of open logs. It does not own transactions: `SqliteThread` puts many calls in
one, so a call looks before it writes, and one that raises a domain error or a ValueError has
written nothing. Rows are integers, text and encoded payloads; `SqliteStore` translates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from service.adapters.stores.log_rules import REQUEST_ID_LIFE, Head, judge
from service.domain.errors import CursorExpired, IdConflict, PredictionNotFound
from service.ports.store import Appended

_REQUEST_ID_LIFE_US = REQUEST_ID_LIFE // timedelta(microseconds=1)
_MAX_HEADS = 4096
"""Far above the predictions open at once; when full, all heads are forgotten and looked up again."""
_RECORDS = """
    SELECT id, model, request_id, created_us, deadline_us, attached, status, epoch, last_sequence,
        outcome, completed_us, data_removed, request, labels, pk
    FROM predictions LEFT JOIN inputs ON prediction = pk"""
_BEFORE_ALL_PAGES = (2**63 - 1, "")

RecordRow = tuple[
    str, str, str, int, int | None, int, str, int, int, bytes, int | None, int, bytes | None, bytes, int
]
"""The columns of `_RECORDS`."""


class StoredRecord(NamedTuple):
    """A record's row, and the entries that came after it was last written."""

    row: RecordRow
    tail: list[tuple[int, bytes]]
    """Sequence and payload; empty for one that has ended."""


@dataclass(frozen=True, slots=True)
class NewLog:
    """A create, encoded."""

    id: str
    model: str
    request_id: str
    body_hash: bytes
    created_us: int
    deadline_us: int | None
    attached: bool
    status: str
    epoch: int
    outcome: bytes
    request: bytes | None
    labels: bytes
    accepted: bytes


class LogWrite(NamedTuple):
    """An append, encoded and held to `check_append`. A tuple for speed, like `Head`."""

    prediction_id: str
    epoch: int
    before: int
    entries: tuple[tuple[int, bytes], ...]
    status: str
    last_sequence: int
    outcome: bytes | None
    """None when the record's row stays as it is: the entries tell the rest (see `StoredRecord`)."""
    completed_us: int | None


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Which predictions a page may hold; times exclusive, in microseconds."""

    after_us: int = -(2**63)
    before_us: int = 2**63 - 1
    cursor: tuple[int, str] = _BEFORE_ALL_PAGES
    """created_us and id of the last prediction of the page before."""


class SqliteTables:
    """All reads and writes of one open database; used by one thread only."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._heads: dict[str, tuple[int, Head]] = {}
        """Row key and head of open logs, equal to what the database holds."""

    def begin(self) -> None:
        """Open a transaction."""
        self._db.execute("BEGIN")

    def commit(self) -> None:
        """Make everything since `begin` durable."""
        self._db.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo everything since `begin`; SQLite may have done so itself."""
        self._heads.clear()
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection, which folds the write-ahead log into the database."""
        self._db.close()

    def create(self, new: NewLog) -> StoredRecord | None:
        """Write a new log; return None, or the record that its request id already names."""
        if new.request_id:
            used = self._db.execute(
                "SELECT id, body_hash, created_us FROM predictions"
                " WHERE request_id = ? AND request_id != '' ORDER BY pk DESC LIMIT 1",
                (new.request_id,),
            ).fetchone()
            if used is not None and new.created_us - used[2] < _REQUEST_ID_LIFE_US:
                if used[1] != new.body_hash:
                    raise IdConflict("request_id was used with another body")
                return self.find(used[0])
        if self._db.execute("SELECT 1 FROM predictions WHERE id = ?", (new.id,)).fetchone():
            raise ValueError("the prediction's id is taken")
        cursor = self._db.execute(
            "INSERT INTO predictions (id, model, request_id, body_hash, created_us, deadline_us,"
            " attached, status, epoch, last_sequence, outcome) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?)",
            (
                *(new.id, new.model, new.request_id, new.body_hash, new.created_us),
                *(new.deadline_us, new.attached, new.status, new.epoch, new.outcome),
            ),
        )
        pk = cursor.lastrowid
        self._db.execute("INSERT INTO inputs VALUES (?, ?, ?)", (pk, new.request, new.labels))
        self._db.execute("INSERT INTO events VALUES (?, 1, ?)", (pk, new.accepted))
        return None

    def claim(self, prediction_id: str) -> StoredRecord:
        """Raise the epoch by one and return the record."""
        self._heads.pop(prediction_id, None)
        self._db.execute("UPDATE predictions SET epoch = epoch + 1 WHERE id = ?", (prediction_id,))
        row = self.find(prediction_id)
        if row is None:
            raise PredictionNotFound("no such prediction")
        return row

    def append(self, writes: Sequence[LogWrite]) -> tuple[Appended, ...]:
        """Write what is not refused, and answer one by one."""
        heads: dict[str, tuple[int, Head]] = {}
        answers: list[Appended] = []
        events: list[tuple[int, int, bytes]] = []
        moved: list[tuple[str, int, bytes, int]] = []
        ended: list[tuple[int | None, int]] = []
        for write in writes:
            found = heads.get(write.prediction_id) or self._find_head(write.prediction_id)
            answer = judge(found and found[1], write.epoch, write.before)
            answers.append(answer)
            if answer is not Appended.OK or found is None:
                continue
            pk = found[0]
            events += [(pk, sequence, payload) for sequence, payload in write.entries]
            if write.outcome is not None:
                moved.append((write.status, write.last_sequence, write.outcome, pk))
            closed = write.completed_us is not None
            if closed:
                ended.append((write.completed_us, pk))
            heads[write.prediction_id] = pk, Head(write.epoch, write.last_sequence, closed)
        self._db.executemany("INSERT INTO events VALUES (?, ?, ?)", events)
        if moved:
            self._db.executemany(
                "UPDATE predictions SET status = ?, last_sequence = ?, outcome = ? WHERE pk = ?", moved
            )
        if ended:  # a statement of its own, as completed_us is in three indexes
            self._db.executemany("UPDATE predictions SET completed_us = ? WHERE pk = ?", ended)
        self._remember(heads)
        return tuple(answers)

    def read(self, prediction_id: str, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return sequence and payload of at most `limit` entries after `after`."""
        row = self._db.execute(
            "SELECT pk, data_removed FROM predictions WHERE id = ?", (prediction_id,)
        ).fetchone()
        if row is None:
            raise PredictionNotFound("no such prediction")
        if row[1]:
            raise CursorExpired("the prediction's log has been removed")
        return self._db.execute(
            "SELECT sequence, payload FROM events WHERE prediction = ? AND sequence > ?"
            " ORDER BY sequence LIMIT ?",
            (row[0], after, limit),
        ).fetchall()

    def find(self, prediction_id: str) -> StoredRecord | None:
        """Return the record, or None."""
        row = self._db.execute(f"{_RECORDS} WHERE id = ?", (prediction_id,)).fetchone()
        return None if row is None else self._whole(row)

    def page(self, bounds: PageBounds, limit: int) -> list[StoredRecord]:
        """Return at most `limit` records, newest first."""
        rows = self._db.execute(
            f"{_RECORDS} WHERE (created_us, id) < (?, ?) AND created_us > ? AND created_us < ?"
            " ORDER BY created_us DESC, id DESC LIMIT ?",
            (*bounds.cursor, bounds.after_us, bounds.before_us, limit),
        )
        return [self._whole(row) for row in rows.fetchall()]

    def unfinished(self) -> list[StoredRecord]:
        """Return every record without `completed`, oldest first."""
        rows = self._db.execute(f"{_RECORDS} WHERE completed_us IS NULL ORDER BY created_us, id")
        return [self._whole(row) for row in rows.fetchall()]

    def expire(self, data_before_us: int, records_before_us: int, limit: int) -> tuple[int, int]:
        """Clear at most `limit` predictions; return how many, and how many of them lost their data."""
        gone = self._db.execute(
            "SELECT pk, data_removed FROM predictions WHERE completed_us < ? LIMIT ?",
            (records_before_us, limit),
        ).fetchall()
        gone_keys = [(pk,) for pk, _ in gone]
        self._db.executemany("DELETE FROM events WHERE prediction = ?", gone_keys)
        self._db.executemany("DELETE FROM inputs WHERE prediction = ?", gone_keys)
        self._db.executemany("DELETE FROM predictions WHERE pk = ?", gone_keys)
        bare = self._db.execute(
            "SELECT pk FROM predictions WHERE completed_us < ? AND data_removed = 0 LIMIT ?",
            (data_before_us, limit - len(gone)),
        ).fetchall()
        self._db.executemany("DELETE FROM events WHERE prediction = ?", bare)
        self._db.executemany("UPDATE inputs SET request = NULL WHERE prediction = ?", bare)
        self._db.executemany("UPDATE predictions SET data_removed = 1 WHERE pk = ?", bare)
        lost = len(bare) + sum(1 for _, removed in gone if not removed)
        return len(gone) + len(bare), lost

    def _whole(self, row: RecordRow) -> StoredRecord:
        """Add what has been appended since the row was written."""
        if row[10] is not None:
            return StoredRecord(row, [])
        tail = "SELECT sequence, payload FROM events WHERE prediction = ? AND sequence > ? ORDER BY sequence"
        return StoredRecord(row, self._db.execute(tail, (row[14], row[8])).fetchall())

    def _find_head(self, prediction_id: str) -> tuple[int, Head] | None:
        found = self._heads.get(prediction_id)
        if found is not None:
            return found
        row = self._db.execute(
            "SELECT pk, epoch, coalesce((SELECT max(sequence) FROM events WHERE prediction = pk),"
            " last_sequence), completed_us IS NOT NULL FROM predictions WHERE id = ?",
            (prediction_id,),
        ).fetchone()
        return row and (row[0], Head(row[1], row[2], bool(row[3])))

    def _remember(self, heads: dict[str, tuple[int, Head]]) -> None:
        if len(self._heads) + len(heads) > _MAX_HEADS:
            self._heads.clear()
        for prediction_id, found in heads.items():
            if found[1].closed:
                self._heads.pop(prediction_id, None)
            else:
                self._heads[prediction_id] = found
