"""A running runtime for tests: predictions over a hand-driven host and a real store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import anyio

from service.adapters.stores.memory import MemoryStore
from service.adapters.system_clock import SystemClock
from service.domain.events import Completed, Entry, Output
from service.domain.request import GenerationRequest, Stopping, TextPrompt
from service.ports.store import PredictionStore
from service.runtime.cursor import LogCursor
from service.runtime.dispatcher import Dispatcher, DispatcherSettings
from service.runtime.models import Models
from service.runtime.new_prediction import NewPrediction
from service.runtime.predictions import Predictions, PredictionSettings
from service.runtime.webhooks import Webhooks
from tests.support.manual_host import ManualHost

MODEL = "test/model"


@dataclass
class Runtime:
    """What a test works with."""

    predictions: Predictions
    dispatcher: Dispatcher
    models: Models
    host: ManualHost
    store: PredictionStore


def new(
    prompt: str = "hello", *, attached: bool = False, request_id: str = "", **changes: object
) -> NewPrediction:
    """Return a create; `changes` are fields of `Stopping` or `NewPrediction`."""
    stopping = {k: v for k, v in changes.items() if k in Stopping.__slots__}
    rest = {k: v for k, v in changes.items() if k not in stopping}
    priority = rest.pop("priority", 0)
    request = GenerationRequest(
        TextPrompt(prompt),
        stopping=Stopping(**stopping),  # type: ignore[arg-type]  # the test's own words
        priority=priority,  # type: ignore[arg-type]
    )
    return NewPrediction(MODEL, request, attached, request_id, **rest)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    store: PredictionStore | None = None,
    host: ManualHost | None = None,
    *,
    queue_limit: int = 100,
    claim_limit: int = 3,
    settings: PredictionSettings | None = None,
    webhooks: Webhooks | None = None,
) -> AsyncGenerator[Runtime, None]:
    """Run a runtime until the block ends, as a process that is killed would."""
    store = store or MemoryStore()
    host = host or ManualHost()
    clock = SystemClock()
    predictions = Predictions(
        store, clock, settings or PredictionSettings(attach_grace=timedelta(seconds=0.05)), webhooks
    )
    limits = DispatcherSettings(queue_limit=queue_limit, claim_limit=claim_limit)
    dispatcher = Dispatcher(MODEL, host, store, predictions.writer, clock, limits)
    dispatchers = {MODEL: dispatcher}
    predictions.serve(dispatchers)
    async with anyio.create_task_group() as tasks:
        if webhooks is not None:
            await tasks.start(webhooks.run)
        tasks.start_soon(dispatcher.run)
        tasks.start_soon(predictions.run)
        try:
            yield Runtime(predictions, dispatcher, Models(dispatchers), host, store)
        finally:
            predictions.stopping = True
            tasks.cancel_scope.cancel()


async def read_all(cursor: LogCursor) -> list[Entry]:
    """Read to the end of the log."""
    entries: list[Entry] = []
    while page := await cursor.next():
        entries.extend(page)
    return entries


def text_of(entries: list[Entry]) -> str:
    """Return the concatenated output."""
    return "".join(e.event.text for e in entries if isinstance(e.event, Output))


def end_of(entries: list[Entry]) -> Completed:
    """Return the one terminal event, having checked I1 and I3."""
    assert [e.sequence for e in entries] == list(range(1, len(entries) + 1))
    ends = [e.event for e in entries if isinstance(e.event, Completed)]
    assert len(ends) == 1 and entries[-1].event is ends[0]
    return ends[0]
