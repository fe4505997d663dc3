"""The store in this process's memory: for tests, and for a trial run that may forget.

The model that other adapters are compared with. Everything happens between two awaits, so each call
is whole by itself. Deliberate differences from the port: nothing outlives the process (promise 1),
and text is not checked to be valid Unicode, which `SqliteStore` does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

from service.adapters.stores.log_rules import (
    Head,
    check_append,
    check_create,
    check_limit,
    judge,
    judge_repeat,
    names_earlier,
)
from service.adapters.stores.page_token import decode_token, encode_token
from service.domain.errors import CursorExpired, PredictionNotFound, StoreUnavailable
from service.domain.events import Entry
from service.domain.lifecycle import Prediction, lasting_labels
from service.domain.webhook_delivery import Delivery
from service.ports.store import Append, Appended, Created, Page


@dataclass(slots=True)
class _Log:
    record: Prediction
    body_hash: bytes
    entries: list[Entry]

    @property
    def head(self) -> Head:
        closed = self.record.completed_at is not None
        return Head(self.record.epoch, self.record.last_sequence, closed)


class MemoryStore:
    """Keep predictions in memory. Use as an async context manager, like any store."""

    def __init__(self, *, max_predictions: int = 100_000) -> None:
        """Hold at most `max_predictions`; when full, a create raises StoreUnavailable."""
        self._max_predictions = max_predictions
        self._logs: dict[str, _Log] = {}
        self._by_request_id: dict[tuple[str, str], list[str]] = {}
        """(owner, request id) → prediction ids in order of arrival: it may be used again after its life."""
        self._order: list[tuple[datetime, str]] = []
        """(created_at, id), ascending."""
        self._deliveries: dict[str, Delivery] = {}
        self._bodies: dict[str, bytes] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        return None

    async def create(self, prediction: Prediction, accepted: Entry, body_hash: bytes) -> Created:
        """See `PredictionLog`."""
        check_create(prediction, accepted)
        earlier = await self.find_created(prediction, body_hash)
        if earlier is not None:
            return Created(earlier, fresh=False)
        if len(self._logs) >= self._max_predictions:
            raise StoreUnavailable("the store is full")
        self._logs[prediction.id] = _Log(prediction, body_hash, [accepted])
        if prediction.request_id:
            self._by_request_id.setdefault(_name(prediction), []).append(prediction.id)
        insort(self._order, (prediction.created_at, prediction.id))
        return Created(prediction, fresh=True)

    async def find_created(self, prediction: Prediction, body_hash: bytes) -> Prediction | None:
        """See `PredictionLog`."""
        used = self._by_request_id.get(_name(prediction))
        earlier = self._logs[used[-1]] if used else None
        if earlier is None or not names_earlier(earlier.record.created_at, prediction.created_at):
            earlier = self._logs.get(prediction.id)
        if earlier is None:
            return None
        same_owner = earlier.record.owner == prediction.owner
        judge_repeat(same_owner=same_owner, same_body=earlier.body_hash == body_hash)
        return earlier.record

    async def claim(self, prediction_id: str) -> Prediction:
        """See `PredictionLog`."""
        log = self._get_log(prediction_id)
        log.record = replace(log.record, epoch=log.record.epoch + 1)
        return log.record

    async def append(self, appends: Sequence[Append]) -> tuple[Appended, ...]:
        """See `PredictionLog`."""
        heads: dict[str, Head] = {}
        answers: list[Appended] = []
        for append in appends:
            before = check_append(append)
            log = self._logs.get(append.prediction_id)
            head = heads.get(append.prediction_id) or (log.head if log else None)
            answers.append(judge(head, append.epoch, before))
            if answers[-1] is Appended.OK:
                record = append.record
                head = Head(append.epoch, record.last_sequence, record.completed_at is not None)
                heads[append.prediction_id] = head
        for append, answer in zip(appends, answers, strict=True):
            if answer is Appended.OK:
                log = self._logs[append.prediction_id]
                log.entries.extend(append.entries)
                log.record = _moved_on(log.record, append.record)
                if append.outgoing is not None:
                    delivery = append.outgoing.delivery
                    self._deliveries[delivery.id] = delivery
                    self._bodies[delivery.id] = append.outgoing.body
        return tuple(answers)

    async def read(self, prediction_id: str, after: int, limit: int) -> tuple[Entry, ...]:
        """See `PredictionLog`."""
        check_limit(limit)
        log = self._get_log(prediction_id)
        if log.record.data_removed:
            raise CursorExpired("the prediction's log has been removed")
        start = max(after, 0)
        return tuple(log.entries[start : start + limit])

    async def find(self, prediction_id: str) -> Prediction | None:
        """See `PredictionIndex`."""
        log = self._logs.get(prediction_id)
        return log.record if log else None

    async def list(
        self,
        *,
        limit: int,
        token: str = "",
        owner: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Page:
        """See `PredictionIndex`."""
        check_limit(limit)
        end = bisect_left(self._order, decode_token(token)) if token else len(self._order)
        found: list[Prediction] = []
        for created_at, prediction_id in reversed(self._order[:end]):
            if created_after is not None and created_at <= created_after:
                break
            if created_before is not None and created_at >= created_before:
                continue
            record = self._logs[prediction_id].record
            if owner and record.owner != owner:
                continue
            if len(found) == limit:
                return Page(tuple(found), encode_token(found[-1].created_at, found[-1].id))
            found.append(record)
        return Page(tuple(found), "")

    async def unfinished(self) -> tuple[Prediction, ...]:
        """See `PredictionIndex`."""
        records = (self._logs[prediction_id].record for _, prediction_id in self._order)
        return tuple(record for record in records if record.completed_at is None)

    async def expire(self, data_before: datetime, records_before: datetime) -> int:
        """See `PredictionIndex`."""
        lost = 0
        for log in list(self._completed_before(max(data_before, records_before))):
            lost += not log.record.data_removed
            log.entries.clear()
            labels = lasting_labels(log.record.labels)
            webhook = log.record.webhook and replace(log.record.webhook, context="")
            log.record = replace(log.record, request=None, labels=labels, data_removed=True, webhook=webhook)
        for log in list(self._completed_before(records_before)):
            self._forget(log.record)
        for delivery in list(self._deliveries.values()):
            if delivery.settled and delivery.created_at < records_before:
                del self._deliveries[delivery.id]
        return lost

    async def pending(self, limit: int) -> tuple[Delivery, ...]:
        """See `WebhookOutbox`."""
        check_limit(limit)
        due = [(d.next_at, number, d) for number, d in enumerate(self._deliveries.values()) if d.next_at]
        return tuple(delivery for _, _, delivery in sorted(due, key=lambda item: item[:2])[:limit])

    async def body(self, delivery_id: str) -> bytes | None:
        """See `WebhookOutbox`."""
        return self._bodies.get(delivery_id)

    async def update(self, delivery: Delivery) -> None:
        """See `WebhookOutbox`."""
        if delivery.id in self._deliveries:
            self._deliveries[delivery.id] = delivery
            if delivery.settled:
                self._bodies.pop(delivery.id, None)

    async def deliveries(self, prediction_id: str, limit: int) -> tuple[Delivery, ...]:
        """See `WebhookOutbox`."""
        return self._newest([d for d in self._deliveries.values() if d.prediction_id == prediction_id], limit)

    async def given_up(self, limit: int, *, owner: str = "") -> tuple[Delivery, ...]:
        """See `WebhookOutbox`."""
        dead = [d for d in self._deliveries.values() if d.given_up]
        return self._newest([d for d in dead if owner in ("", d.owner)], limit)

    @staticmethod
    def _newest(found: Sequence[Delivery], limit: int) -> tuple[Delivery, ...]:
        check_limit(limit)
        numbered = [(delivery.created_at, number, delivery) for number, delivery in enumerate(found)]
        numbered.sort(key=lambda item: item[:2], reverse=True)
        return tuple(delivery for _, _, delivery in numbered[:limit])

    def _get_log(self, prediction_id: str) -> _Log:
        log = self._logs.get(prediction_id)
        if log is None:
            raise PredictionNotFound("no such prediction")
        return log

    def _completed_before(self, moment: datetime) -> Iterator[_Log]:
        for log in self._logs.values():
            if log.record.completed_at is not None and log.record.completed_at < moment:
                yield log

    def _forget(self, record: Prediction) -> None:
        del self._logs[record.id]
        del self._order[bisect_left(self._order, (record.created_at, record.id))]
        if record.request_id:
            used = self._by_request_id[_name(record)]
            used.remove(record.id)
            if not used:
                del self._by_request_id[_name(record)]


def _name(record: Prediction) -> tuple[str, str]:
    """Return what names the create: nothing is ever filed under an empty request id."""
    return record.owner, record.request_id


def _moved_on(stored: Prediction, record: Prediction) -> Prediction:
    """Take from `record` what a fold can change; what a create fixed stays as stored."""
    return replace(
        stored,
        status=record.status,
        started_at=record.started_at,
        first_output_at=record.first_output_at,
        completed_at=record.completed_at,
        finish_reason=record.finish_reason,
        matched_stop=record.matched_stop,
        usage=record.usage,
        error=record.error,
        last_sequence=record.last_sequence,
    )
