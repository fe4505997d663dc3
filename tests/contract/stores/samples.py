"""Predictions and appends for store tests, built by the fold that the service uses."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from service.domain.events import (
    Accepted,
    Completed,
    Entry,
    Event,
    FinishReason,
    Output,
    Started,
    Status,
    Usage,
)
from service.domain.lifecycle import Prediction, advance
from service.domain.request import GenerationRequest, TextPrompt
from service.domain.webhook import WebhookEvent
from service.domain.webhook_delivery import Delivery, Outgoing
from service.ports.store import Append, PredictionStore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
HASH = b"a" * 32
OTHER_HASH = b"b" * 32
BOUND_S = 30


def bounded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Fail a test that waits for ever."""

    @functools.wraps(test)
    async def run(*args: Any, **fixtures: Any) -> None:
        with anyio.fail_after(BOUND_S):
            await test(*args, **fixtures)

    return run


def new(prediction_id: str, at: datetime = NOW, **fields: Any) -> tuple[Prediction, Entry]:
    """Return a new record and its `accepted`."""
    request = fields.pop("request", GenerationRequest(TextPrompt(f"prompt of {prediction_id}")))
    accepted = Entry(1, Accepted(at))
    return advance(Prediction(prediction_id, "a-model", request, at, **fields), accepted), accepted


def output(text: str) -> Output:
    """Return an output of one token."""
    return Output(text, (len(text),), 1)


def completed(at: datetime = NOW, status: Status = Status.SUCCEEDED) -> Completed:
    """Return an end."""
    return Completed(at, status, FinishReason.STOP, Usage(3, 1, 7), "###")


def outgoing(prediction_id: str, at: datetime = NOW, body: bytes = b"{}", *, owner: str = "") -> Outgoing:
    """Return the call that tells a prediction's end."""
    delivery_id = f"msg_{prediction_id}_completed_4"
    event = WebhookEvent.COMPLETED
    return Outgoing(
        Delivery(delivery_id, prediction_id, event, "https://h.example", at, next_at=at, owner=owner), body
    )


class Writer:
    """Folds what it appends, as the service does."""

    def __init__(self, record: Prediction) -> None:
        self.record = record

    def append(self, *events: Event) -> Append:
        """Return the append of `events`, at its place in the log."""
        entries = tuple(Entry(self.record.last_sequence + i, event) for i, event in enumerate(events, 1))
        for entry in entries:
            self.record = advance(self.record, entry, NOW)
        return Append(self.record.id, self.record.epoch, entries, self.record)

    def stale(self) -> Writer:
        """Return a writer that has missed the last claim."""
        return Writer(replace(self.record, epoch=self.record.epoch - 1))


async def started(store: PredictionStore, prediction_id: str, at: datetime = NOW, **fields: Any) -> Writer:
    """Create, claim and start a prediction."""
    await store.create(*new(prediction_id, at, **fields), HASH)
    writer = Writer(await store.claim(prediction_id))
    await store.append([writer.append(Started(at, 3))])
    return writer


async def finished(store: PredictionStore, prediction_id: str, at: datetime = NOW, **fields: Any) -> Writer:
    """Create a prediction and take it to its end."""
    writer = await started(store, prediction_id, at, **fields)
    await store.append([writer.append(output("all of it"), completed(at))])
    return writer
