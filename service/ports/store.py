"""The store port: where records and event logs live, split by caller.

`PredictionLog` is what writing and reading a stream needs, `PredictionIndex` what looking for
predictions and clearing them needs, `WebhookOutbox` what sending what must arrive needs. An adapter
offers all as one `PredictionStore`. One contract
suite (`tests/contract/stores`) runs over every adapter, a test per promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Protocol

from service.domain.events import Entry
from service.domain.lifecycle import Prediction
from service.domain.webhook_delivery import Delivery, Outgoing


class Appended(Enum):
    """What became of one append."""

    OK = "ok"
    FENCED = "fenced"
    """Its epoch is not the claim's: another worker owns the log now. Nothing was written."""
    CLOSED = "closed"
    """The log already has its `completed`. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Append:
    """Entries for one log, from one claim."""

    prediction_id: str
    epoch: int
    entries: tuple[Entry, ...]
    record: Prediction
    """The record after the last of `entries` (the fold; its epoch is `epoch`)."""
    outgoing: Outgoing | None = None
    """What to send when `entries` are in the store; written with them or not at all."""


@dataclass(frozen=True, slots=True)
class Created:
    """The outcome of a create."""

    prediction: Prediction
    fresh: bool
    """False when request id or id named an earlier create with the same body."""


@dataclass(frozen=True, slots=True)
class Page:
    """A slice of a listing, newest first."""

    predictions: tuple[Prediction, ...]
    next_token: str
    """Empty when there is no more."""


class PredictionLog(Protocol):
    """Promises:
        1. A call that returned is durable against the death of this process.
        2. `create` writes record and first entry (`accepted`, sequence 1) together. With a
           non-empty `request_id` that the same owner used in the last 24 h it returns the earlier
           prediction if `body_hash` is equal and raises `IdConflict` if not; concurrent equal
           creates make one. An id that is taken is judged likewise, and one taken by another owner
           is a conflict. `find_created` answers the same and writes nothing: None where `create`
           would make a new one.
        3. `claim` raises the epoch by one and returns the record; `PredictionNotFound` if unknown.
        4. `append` commits all appends of a call in one transaction and answers one by one, in
           order; a refused one changes nothing and does not hinder the others. Sequences must
           continue the log without a hole: a repeat or a gap raises `ValueError` (a bug).
        5. `read` returns entries with sequence > `after`, ascending, at most `limit`; never a
           hole; empty at the end; `PredictionNotFound` if unknown, `CursorExpired` if removed.
        6. A store that cannot write raises `StoreUnavailable`, keeps what it had, and works again
           when it can.
    A cancelled call may or may not have taken effect, as a whole.
    """

    async def create(self, prediction: Prediction, accepted: Entry, body_hash: bytes) -> Created: ...

    async def find_created(self, prediction: Prediction, body_hash: bytes) -> Prediction | None: ...

    async def claim(self, prediction_id: str) -> Prediction: ...

    async def append(self, appends: Sequence[Append]) -> tuple[Appended, ...]: ...

    async def read(self, prediction_id: str, after: int, limit: int) -> tuple[Entry, ...]: ...


class PredictionIndex(Protocol):
    """Promises:
    7. `find` returns the latest record, or None.
    8. `list` is newest first by (created_at, id), with every prediction once over all pages
       although others are created meanwhile; an unreadable `token` raises `InvalidRequest`
       naming `page_token`. Optional bounds on created_at: after (exclusive), before (exclusive).
       With `owner` it is the owner's predictions alone, in pages as full as without.
    9. `unfinished` returns every record without `completed`, oldest first.
    10. `expire` removes request, events and `data.` labels of predictions completed before
        `data_before` (their records stay, `data_removed` set, without their webhook's `context`) and
        whole records completed before `records_before`; it returns how many lost their data.
        Idempotent.
    """

    async def find(self, prediction_id: str) -> Prediction | None: ...

    async def list(
        self,
        *,
        limit: int,
        token: str = "",
        owner: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Page: ...

    async def unfinished(self) -> tuple[Prediction, ...]: ...

    async def expire(self, data_before: datetime, records_before: datetime) -> int: ...


class WebhookOutbox(Protocol):
    """Promises:
    11. An `outgoing` of an append that was answered `OK` is there, with its body, and was written in
        the append's transaction; of a refused one nothing is.
    12. `pending` returns unsettled deliveries, those due first first, at most `limit`.
    13. `body` returns a delivery's bytes as they were given; None once it is settled or gone.
    14. `update` replaces a delivery's state, and removes its body if it is settled then; an unknown
        one is ignored.
    15. `deliveries` returns those of one prediction, and `given_up` those without success, newest
        first, at most `limit`; with `owner` the owner's alone.
    16. `expire` removes settled deliveries created before `records_before`. An unsettled one stays,
        with its body, whatever becomes of its prediction.
    """

    async def pending(self, limit: int) -> tuple[Delivery, ...]: ...

    async def body(self, delivery_id: str) -> bytes | None: ...

    async def update(self, delivery: Delivery) -> None: ...

    async def deliveries(self, prediction_id: str, limit: int) -> tuple[Delivery, ...]: ...

    async def given_up(self, limit: int, *, owner: str = "") -> tuple[Delivery, ...]: ...


class PredictionStore(PredictionLog, PredictionIndex, WebhookOutbox, Protocol):
    """All roles; opened and closed by `main`."""
