"""The log writer: carries staged entries to the store, then shows them to readers.

Log first, then publish (I5): one store call, so one transaction, takes everything that all
predictions have staged since the last call. While it runs the engine goes on; what comes meanwhile
is the next call. A store that cannot write is tried again: streams pause, nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import anyio
import structlog

from service.domain.errors import StoreUnavailable
from service.domain.events import Entry
from service.domain.lifecycle import Prediction
from service.ports.store import Append, Appended, PredictionLog
from service.runtime.live import LivePrediction

log = structlog.get_logger()

RETRY = timedelta(seconds=0.25)
"""Pause before a store that refused is asked again."""


class LogWriter:
    """One task, the only caller of `append`.

    `on_completed` is called once a prediction's end is in the store; `on_fenced` when another worker
    owns its log. Both run on the event loop and must not block.
    """

    def __init__(
        self,
        store: PredictionLog,
        *,
        on_completed: Callable[[LivePrediction], None],
        on_fenced: Callable[[LivePrediction], None],
    ) -> None:
        self._store = store
        self._on_completed = on_completed
        self._on_fenced = on_fenced
        self._dirty: dict[str, LivePrediction] = {}
        self._writing: frozenset[str] = frozenset()
        self._work = asyncio.Event()
        self._written = asyncio.Event()
        self.failing = False
        """Whether the last call was refused: new predictions are refused meanwhile."""

    def notice(self, live: LivePrediction) -> None:
        """Say that `live` has staged entries. Never blocks; bounded by the live predictions."""
        self._dirty[live.id] = live
        self._work.set()

    async def flush(self, live: LivePrediction) -> None:
        """Wait until everything that `live` has staged is in the store."""
        while live.id in self._dirty or live.id in self._writing:
            await self._written.wait()

    async def flush_all(self) -> None:
        """Wait until nothing is staged."""
        while self._dirty or self._writing:
            await self._written.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            dirty, self._dirty = self._dirty, {}
            self._writing = frozenset(dirty)
            batch = [(live, live.take(), live.staged_record) for live in dirty.values() if live.staged]
            if batch:
                await self._write(batch)
            self._writing = frozenset()
            written, self._written = self._written, asyncio.Event()
            written.set()

    async def _write(self, batch: list[tuple[LivePrediction, tuple[Entry, ...], Prediction]]) -> None:
        appends = [Append(live.id, record.epoch, entries, record) for live, entries, record in batch]
        outcomes = await self._append(appends)
        for (live, entries, record), outcome in zip(batch, outcomes, strict=True):
            if outcome is Appended.OK:
                live.publish(entries, record)
                if record.status.terminal:
                    self._on_completed(live)
            else:
                log.warning(
                    "append_refused", prediction_id=live.id, outcome=outcome.value, epoch=record.epoch
                )
                self._on_fenced(live)

    async def _append(self, appends: list[Append]) -> tuple[Appended, ...]:
        while True:
            try:
                outcomes = await self._store.append(appends)
            except StoreUnavailable as error:
                if not self.failing:
                    log.error("store_unavailable", detail=error.detail)
                self.failing = True
                await anyio.sleep(RETRY.total_seconds())
            else:
                self.failing = False
                return outcomes
