"""The one owner of predictions: creates them, finds them, ends them, and lets readers follow them.

All state of unfinished predictions is here, on one event loop; what has ended is in the store.
Everything that can end a prediction (cancel, a caller's going, its deadline, the run limit) goes
through `_end`, where the first wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import anyio
import structlog

from service.domain.errors import (
    CursorExpired,
    Draining,
    ModelNotFound,
    PredictionNotFound,
    StoreUnavailable,
    TooManyReaders,
)
from service.domain.events import Accepted, Entry, FinishReason, Log, Output, Status
from service.domain.lifecycle import Ending, Prediction, advance
from service.domain.request import GenerationRequest
from service.ports.clock import Clock
from service.ports.store import Created, Page, PredictionStore
from service.runtime.cursor import PAGE, LogCursor
from service.runtime.dispatcher import Dispatcher
from service.runtime.following import Following
from service.runtime.ids import new_id
from service.runtime.live import LivePrediction
from service.runtime.log_writer import LogWriter
from service.runtime.timers import Timers

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """Limits of every prediction."""

    readers_limit: int = 16
    """Readers that may follow one prediction at a time."""
    run_limit: timedelta = timedelta(minutes=30)
    """From creation; a prediction that is not over by then fails."""
    attach_grace: timedelta = timedelta(seconds=10)
    """How long an attached prediction without its caller waits for it to come back."""


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """What a create asks for."""

    model: str
    request: GenerationRequest
    attached: bool = False
    request_id: str = ""
    cancel_after: timedelta | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def body_hash(self) -> bytes:
        """Return a digest that two creates share only if they ask for the same."""
        body = (self.model, self.request, self.attached, self.cancel_after, sorted(self.labels))
        return hashlib.sha256(repr(body).encode("utf-8", "backslashreplace")).digest()


@dataclass(frozen=True, slots=True)
class OutputSoFar:
    """The data of a log, for representations that show it whole."""

    pieces: tuple[str, ...]
    """The text of each output entry, in order."""
    logs: str
    """The log lines, joined by line feeds."""


class Predictions:
    """See the module. `run` must be running while anything else is called."""

    def __init__(
        self,
        store: PredictionStore,
        clock: Clock,
        settings: PredictionSettings,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._dispatchers: Mapping[str, Dispatcher] = {}
        self._live: dict[str, LivePrediction] = {}
        self._timers = Timers()
        self._idle = anyio.Event()
        self.writer = LogWriter(store, on_completed=self._forget, on_fenced=self._fenced)
        self.draining = False
        self.stopping = False

    def serve(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Say which models there are, before `run`."""
        self._dispatchers = dispatchers

    async def run(self) -> None:
        """Take up what an earlier process left unfinished, then write logs until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.writer.run)
                await self._restore()
        finally:
            self._timers.close()

    # -- creating -------------------------------------------------------------------------------

    async def create(self, new: NewPrediction) -> Created:
        """Admit and store a prediction, and put it into its model's queue.

        A caller that is cancelled meanwhile leaves either nothing or a whole prediction; an
        attached one is then canceled.

        Raises:
            ModelNotFound, InvalidRequest, ContextExceeded, UnsupportedByEngine, IdConflict, QueueFull,
            EngineNotReady, Draining, StoreUnavailable.
        """
        dispatcher = self._dispatchers.get(new.model)
        if dispatcher is None:
            raise ModelNotFound(f"no model {new.model!r:.200} is served here")
        self._refuse_when_closed()
        input_tokens = await dispatcher.admit(new.request)
        live: LivePrediction | None = None
        try:
            self._refuse_when_closed()
            with anyio.CancelScope(shield=True):
                created, live = await self._store_new(new, input_tokens)
        finally:
            if live is None:
                dispatcher.release()
        if live is not None:
            self._follow(live)
            dispatcher.enqueue(live, reserved=True)
            if new.attached:
                await self._checkpoint(live)
        return created

    def _refuse_when_closed(self) -> None:
        if self.draining:
            raise Draining("the service is stopping; try again", retry_after=timedelta(seconds=2))
        if self.writer.failing:
            text = "predictions cannot be stored at the moment; try again"
            raise StoreUnavailable(text, retry_after=timedelta(seconds=5))

    async def _store_new(
        self, new: NewPrediction, input_tokens: int
    ) -> tuple[Created, LivePrediction | None]:
        now = self._clock.now()
        accepted = Entry(1, Accepted(now))
        blank = Prediction(
            id=new_id(),
            model=new.model,
            request=new.request,
            created_at=now,
            attached=new.attached,
            request_id=new.request_id,
            deadline=now + new.cancel_after if new.cancel_after else None,
            labels=new.labels,
            epoch=1,
        )
        record = advance(blank, accepted)
        created = await self._store.create(record, accepted, new.body_hash())
        if not created.fresh:
            return created, None
        return created, LivePrediction(record, (accepted,), input_tokens=input_tokens)

    async def _checkpoint(self, live: LivePrediction) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException:
            self._caller_gone(live)
            raise

    def _follow(self, live: LivePrediction) -> None:
        """Hold a live prediction and arm what may end it."""
        record = live.record
        self._live[live.id] = live
        now = self._clock.now()
        limit = record.created_at + self._settings.run_limit
        if record.deadline is not None and record.deadline <= limit:
            ending = Ending(Status.CANCELED, FinishReason.DEADLINE)
            self._timers.after(live.id, record.deadline - now, lambda: self._end(live, ending))
        else:
            seconds = self._settings.run_limit.total_seconds()
            text = f"the prediction ran longer than the limit of {seconds:g} s"
            failed = Ending(Status.FAILED, FinishReason.ERROR, error=text)
            self._timers.after(live.id, limit - now, lambda: self._end(live, failed))
        if record.attached:
            self._await_caller(live)

    async def _restore(self) -> None:
        for record in await self._store.unfinished():
            dispatcher = self._dispatchers.get(record.model)
            entries = await self._read_all(record.id)
            live = LivePrediction(record, entries, input_tokens=0)
            live.needs_claim = True
            self._follow(live)
            if dispatcher is None or record.request is None:
                claimed = await self._store.claim(record.id)
                live.claim(claimed)
                error = f"model {record.model} is no longer served"
                live.close(Ending(Status.FAILED, FinishReason.ERROR, error=error))
                live.settle(self._clock.now(), record.usage)
                self.writer.notice(live)
            else:
                log.info("prediction_restored", prediction_id=live.id, seq=record.last_sequence)
                dispatcher.enqueue(live)

    async def _read_all(self, prediction_id: str) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        while page := await self._store.read(prediction_id, len(entries), PAGE):
            entries.extend(page)
        return tuple(entries)

    # -- ending ---------------------------------------------------------------------------------

    async def cancel(self, prediction_id: str) -> Prediction:
        """End a prediction as canceled, and return it once that is in the store.

        One that has ended, or is about to, keeps its own end. Idempotent.

        Raises:
            PredictionNotFound: no such prediction.
        """
        live = self._live.get(prediction_id)
        if live is None:
            return await self._stored(prediction_id)
        self._end(live, Ending(Status.CANCELED, FinishReason.CANCELED))
        await live.done.wait()
        return live.record

    def _end(self, live: LivePrediction, ending: Ending) -> None:
        if live.close(ending):
            self._dispatchers[live.record.model].finish(live)

    def _caller_gone(self, live: LivePrediction) -> None:
        if not self.stopping:
            self._end(live, Ending(Status.CANCELED, FinishReason.CANCELED))

    def _await_caller(self, live: LivePrediction) -> None:
        """Cancel an attached prediction unless its caller is there within the grace."""

        def check() -> None:
            if live.attached_callers == 0:
                self._caller_gone(live)

        self._timers.after(f"{live.id}/caller", self._settings.attach_grace, check)

    def _forget(self, live: LivePrediction) -> None:
        self._live.pop(live.id, None)
        self._timers.cancel(live.id)
        self._timers.cancel(f"{live.id}/caller")
        record = live.record
        log.info(
            "prediction_completed",
            prediction_id=live.id,
            model=record.model,
            status=record.status.value,
            finish_reason=record.finish_reason.value if record.finish_reason else "",
            input_tokens=record.usage.input_tokens,
            output_tokens=record.usage.output_tokens,
            epoch=record.epoch,
        )
        if not self._live:
            idle, self._idle = self._idle, anyio.Event()
            idle.set()

    def _fenced(self, live: LivePrediction) -> None:
        """Let go of a log that another worker has taken over; its readers resume elsewhere."""
        live.close(Ending(Status.CANCELED, FinishReason.CANCELED))
        self._dispatchers[live.record.model].finish(live)
        self._forget(live)
        live.done.set()
        live.wake()

    # -- reading --------------------------------------------------------------------------------

    async def get(self, prediction_id: str, wait: timedelta = timedelta(0)) -> Prediction:
        """Return a prediction, when it has ended or after `wait`, whichever is first.

        Raises:
            PredictionNotFound: no such prediction.
        """
        live = self._live.get(prediction_id)
        if live is None:
            return await self._stored(prediction_id)
        if wait > timedelta(0):
            with anyio.move_on_after(wait.total_seconds()):
                await live.done.wait()
        return live.record

    async def read_output(self, prediction_id: str) -> OutputSoFar:
        """Return everything put out so far; empty once the data has been removed.

        Raises:
            PredictionNotFound: no such prediction.
        """
        live = self._live.get(prediction_id)
        try:
            entries = tuple(live.entries) if live else await self._read_all(prediction_id)
        except CursorExpired:
            entries = ()
        pieces = tuple(e.event.text for e in entries if isinstance(e.event, Output))
        return OutputSoFar(pieces, "\n".join(e.event.text for e in entries if isinstance(e.event, Log)))

    async def list(
        self,
        *,
        limit: int,
        token: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Page:
        """Return a page of predictions, newest first.

        Raises:
            InvalidRequest: `token` is not one of ours.
        """
        return await self._store.list(
            limit=limit, token=token, created_after=created_after, created_before=created_before
        )

    @asynccontextmanager
    async def open_log(
        self, prediction_id: str, after: int = 0, *, attach: bool = False
    ) -> AsyncGenerator[LogCursor, None]:
        """Open a reader's cursor after sequence `after`.

        With `attach`, the reader is the prediction's caller: leaving before the end cancels it
        (if it was created attached and no other caller is left), unless the service itself stops.
        One that is sent away (`LogCursor.returning`) has the attach grace to come back.

        Raises:
            PredictionNotFound: no such prediction.
            TooManyReaders: it has its limit of readers.
        """
        live = self._live.get(prediction_id)
        if live is None:
            await self._stored(prediction_id)
            yield LogCursor(prediction_id, after, live=None, store=self._store)
            return
        if live.readers >= self._settings.readers_limit:
            text = f"at most {self._settings.readers_limit} readers may follow a prediction"
            raise TooManyReaders(text, retry_after=timedelta(seconds=1))
        attach = attach and live.record.attached
        live.readers += 1
        live.attached_callers += attach
        cursor = LogCursor(prediction_id, after, live=live, store=self._store)
        try:
            yield cursor
        finally:
            live.readers -= 1
            live.attached_callers -= attach
            if attach and live.attached_callers == 0:
                if cursor.returning:
                    self._await_caller(live)
                else:
                    self._caller_gone(live)

    def follow(self, prediction_id: str, after: int, watcher: Callable[[], None]) -> Following | None:
        """Follow a live prediction without a task (see `Following`), never attached.

        Returns None for one that is not live, or has its limit of readers.
        """
        live = self._live.get(prediction_id)
        if live is None or live.readers >= self._settings.readers_limit:
            return None
        return Following(live, after, watcher)

    async def _stored(self, prediction_id: str) -> Prediction:
        record = await self._store.find(prediction_id)
        if record is None:
            raise PredictionNotFound("no such prediction")
        live = self._live.get(prediction_id)
        return live.record if live else record

    # -- stopping -------------------------------------------------------------------------------

    async def drain(self, grace: timedelta) -> None:
        """Refuse new predictions and give running ones up to `grace` to end.

        What is left then stays unfinished in the store, for the next process to continue.
        """
        self.draining = True
        with anyio.move_on_after(grace.total_seconds()):
            while self._live:
                await self._idle.wait()
        self.stopping = True
        for dispatcher in self._dispatchers.values():
            dispatcher.pause()
        log.info("drained", left=len(self._live))
