"""The embedded store: one SQLite file, one connection, one thread.

Owns the translation between the port and the tables. Encoding and decoding happen on the caller's
side, so that the thread does nothing but SQL. Deliberate differences from the port: `expire` works
in pieces, each whole by itself, so that a sweep does not hold up the engine's steps; a canceled one
may have done some of them. Durable against the death of the process (WAL, synchronous=NORMAL); a
power cut may take the last commits before the latest checkpoint, never the order or the soundness.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self

from service.adapters.stores.log_rules import check_append, check_create, check_limit
from service.adapters.stores.page_token import decode_token, encode_token
from service.adapters.stores.sqlite_codec import (
    Outcome,
    decode_entries,
    decode_labels,
    decode_outcome,
    encode_event,
    encode_labels,
    encode_outcome,
    from_us,
    from_us_or_none,
    to_us,
    to_us_or_none,
)
from service.adapters.stores.sqlite_request_codec import decode_request, encode_request
from service.adapters.stores.sqlite_schema import open_database
from service.adapters.stores.sqlite_tables import (
    LogWrite,
    NewLog,
    PageBounds,
    RecordRow,
    StoredRecord,
)
from service.adapters.stores.sqlite_thread import SqliteThread
from service.domain.events import Entry, Output, Status, Usage
from service.domain.lifecycle import Prediction, advance
from service.ports.store import Append, Appended, Created, Page

EXPIRE_PIECE = 16
"""Predictions cleared in one turn: at some thousand entries each, tens of milliseconds."""
_MAX_INTEGER = 2**63 - 1
"""SQLite's; a larger `after` or limit means the same."""


class SqliteStore:
    """Keep predictions in a SQLite file. Use as an async context manager.

    Opening raises StoreUnavailable with a message for operators if the file is in use by another
    process, was written by a newer version, or cannot be opened. Closing finishes accepted calls.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None, max_waiting: int = 1024) -> None:
        """Use the file at `path`, whose folder exists.

        `max_bytes` bounds the file; at the bound, writes raise StoreUnavailable until `expire` has
        made room. `max_waiting` bounds the calls under way; further ones wait for room.
        """
        self._thread = SqliteThread(
            partial(open_database, path, max_bytes=max_bytes), max_waiting=max_waiting
        )

    async def __aenter__(self) -> Self:
        await self._thread.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._thread.__aexit__(*exc_info)

    async def create(self, prediction: Prediction, accepted: Entry, body_hash: bytes) -> Created:
        """See `PredictionLog`."""
        check_create(prediction, accepted)
        new = _encode_new(prediction, accepted, body_hash)
        row = await self._thread.call(lambda tables: tables.create(new), writes=True)
        if row is None:
            return Created(prediction, fresh=True)
        return Created(_decode_record(row), fresh=False)

    async def claim(self, prediction_id: str) -> Prediction:
        """See `PredictionLog`."""
        row = await self._thread.call(lambda tables: tables.claim(prediction_id), writes=True)
        return _decode_record(row)

    async def append(self, appends: Sequence[Append]) -> tuple[Appended, ...]:
        """See `PredictionLog`."""
        writes = [_encode_append(append) for append in appends]
        return await self._thread.call(lambda tables: tables.append(writes), writes=True)

    async def read(self, prediction_id: str, after: int, limit: int) -> tuple[Entry, ...]:
        """See `PredictionLog`."""
        check_limit(limit)
        start, count = min(after, _MAX_INTEGER), min(limit, _MAX_INTEGER)
        rows = await self._thread.call(lambda tables: tables.read(prediction_id, start, count), writes=False)
        return decode_entries(rows)

    async def find(self, prediction_id: str) -> Prediction | None:
        """See `PredictionIndex`."""
        row = await self._thread.call(lambda tables: tables.find(prediction_id), writes=False)
        return None if row is None else _decode_record(row)

    async def list(
        self,
        *,
        limit: int,
        token: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Page:
        """See `PredictionIndex`."""
        check_limit(limit)
        bounds = _to_bounds(token, created_after, created_before)
        count = min(limit, _MAX_INTEGER - 1) + 1
        rows = await self._thread.call(lambda tables: tables.page(bounds, count), writes=False)
        found = tuple([_decode_record(row) for row in rows[:limit]])
        more = len(rows) > limit
        return Page(found, encode_token(found[-1].created_at, found[-1].id) if more else "")

    async def unfinished(self) -> tuple[Prediction, ...]:
        """See `PredictionIndex`."""
        rows = await self._thread.call(lambda tables: tables.unfinished(), writes=False)
        return tuple([_decode_record(row) for row in rows])

    async def expire(self, data_before: datetime, records_before: datetime) -> int:
        """See `PredictionIndex`."""
        data_us, records_us = to_us(data_before), to_us(records_before)
        total = 0
        cleared = EXPIRE_PIECE
        while cleared == EXPIRE_PIECE:
            cleared, lost = await self._thread.call(
                lambda tables: tables.expire(data_us, records_us, EXPIRE_PIECE), writes=True
            )
            total += lost
        return total


def _encode_new(prediction: Prediction, accepted: Entry, body_hash: bytes) -> NewLog:
    request = prediction.request
    return NewLog(
        id=prediction.id,
        model=prediction.model,
        request_id=prediction.request_id,
        body_hash=body_hash,
        created_us=to_us(prediction.created_at),
        deadline_us=to_us_or_none(prediction.deadline),
        attached=prediction.attached,
        status=prediction.status.value,
        epoch=prediction.epoch,
        outcome=_encode_outcome(prediction),
        request=None if request is None else encode_request(request),
        labels=encode_labels(prediction.labels),
        accepted=encode_event(accepted.event),
    )


def _encode_append(append: Append) -> LogWrite:
    record = append.record
    return LogWrite(
        append.prediction_id,
        append.epoch,
        check_append(append),
        tuple([(entry.sequence, encode_event(entry.event)) for entry in append.entries]),
        record.status.value,
        record.last_sequence,
        None if _only_output(append) else _encode_outcome(record),
        to_us_or_none(record.completed_at),
    )


def _only_output(append: Append) -> bool:
    """Whether the record's row can stay as it is: output after the first, nearly every append.

    The row is the dear half of an append. What it lacks is folded from the entries when it is read.
    """
    tokens = 0
    for entry in append.entries:
        if not isinstance(entry.event, Output):
            return False
        tokens += entry.event.token_count
    return append.record.usage.output_tokens > tokens


def _encode_outcome(record: Prediction) -> bytes:
    return encode_outcome(
        Outcome(
            to_us_or_none(record.started_at),
            to_us_or_none(record.first_output_at),
            record.usage.input_tokens,
            record.usage.cached_input_tokens,
            record.usage.output_tokens,
            record.finish_reason,
            record.matched_stop,
            record.error,
        )
    )


def _decode_record(stored: StoredRecord) -> Prediction:
    record = _decode_row(stored.row)
    for entry in decode_entries(stored.tail) if stored.tail else ():
        record = advance(record, entry)
    return record


def _decode_row(row: RecordRow) -> Prediction:
    (id_, model, request_id, created_us, deadline_us, attached, status, epoch, last_sequence) = row[:9]
    (payload, completed_us, data_removed, request, labels) = row[9:14]
    outcome = decode_outcome(payload)
    return Prediction(
        id=id_,
        model=model,
        request=None if request is None else decode_request(request),
        created_at=from_us(created_us),
        attached=bool(attached),
        request_id=request_id,
        deadline=from_us_or_none(deadline_us),
        labels=decode_labels(labels),
        status=Status(status),
        started_at=from_us_or_none(outcome.started_us),
        first_output_at=from_us_or_none(outcome.first_output_us),
        completed_at=from_us_or_none(completed_us),
        finish_reason=outcome.finish_reason,
        matched_stop=outcome.matched_stop,
        usage=Usage(outcome.input_tokens, outcome.cached_input_tokens, outcome.output_tokens),
        error=outcome.error,
        epoch=epoch,
        last_sequence=last_sequence,
        data_removed=bool(data_removed),
    )


def _to_bounds(token: str, after: datetime | None, before: datetime | None) -> PageBounds:
    bounds = PageBounds()
    if token:
        created_at, prediction_id = decode_token(token)
        cursor = to_us(created_at), prediction_id
    else:
        cursor = bounds.cursor
    return PageBounds(
        bounds.after_us if after is None else to_us(after),
        bounds.before_us if before is None else to_us(before),
        cursor,
    )
