"""The dispatcher of one model: its queue, its slots, and what its engine reports.

Owns which prediction holds which slot. A slot is taken from submit until the engine says that the
job has ended, whatever has become of the prediction meanwhile (a cancel frees capacity only when
the engine confirms). When the engine's process is lost, its predictions are claimed again under a
new epoch and go on from their logs.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import anyio
import structlog
from anyio.abc import TaskGroup

from service.domain.admission import check_queue, check_request, token_budget
from service.domain.continuation import (
    ending_instead,
    exact_token_ids,
    logged_text,
    with_seed,
    worth_replaying,
)
from service.domain.errors import EngineNotReady, InvalidRequest, PredictionNotFound, StoreUnavailable
from service.domain.events import FinishReason, Output, Started, Status, Usage
from service.domain.lifecycle import Ending
from service.domain.request import GenerationRequest
from service.domain.tools import effective_constraint
from service.ports.clock import Clock
from service.ports.engine import EndReason, EngineInfo
from service.ports.engine_host import (
    EngineDown,
    EngineHost,
    EngineUp,
    HostEvent,
    HostJob,
    JobEnded,
    JobOutput,
    JobPrefilled,
)
from service.ports.store import PredictionLog
from service.runtime.live import LivePrediction
from service.runtime.log_writer import LogWriter
from service.runtime.readiness import ModelState, Readiness
from service.runtime.waiting_queue import WaitingQueue

log = structlog.get_logger()

CONFIRM_WAIT = timedelta(seconds=1)
"""How long a cancel waits for the engine's exact token count, before the known one is used."""
RUNS_REMEMBERED = 32
"""Runs whose mean tells how fast the queue moves."""
CLAIM_RETRY = timedelta(seconds=0.25)


@dataclass(frozen=True, slots=True)
class DispatcherSettings:
    """Limits of one model's queue."""

    queue_limit: int = 100
    """Predictions that may wait; above it creates are refused."""
    claim_limit: int = 3
    """Claims without new output after which a prediction fails."""


@dataclass(frozen=True, slots=True)
class _Running:
    live: LivePrediction
    began: float
    tokens_before: int


class Dispatcher:
    """See the module. Used from the event loop's thread alone."""

    def __init__(
        self,
        model: str,
        host: EngineHost,
        store: PredictionLog,
        writer: LogWriter,
        clock: Clock,
        settings: DispatcherSettings,
    ) -> None:
        self.model = model
        self.readiness = Readiness(model, host)
        self._host = host
        self._store = store
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._queue = WaitingQueue()
        self._reserved = 0
        self._continuing: set[str] = set()
        self._running: dict[str, _Running] = {}
        self._job_of: dict[str, str] = {}
        self._run_seconds: deque[float] = deque([5.0], maxlen=RUNS_REMEMBERED)
        self._tasks: TaskGroup | None = None
        self._paused = False

    @property
    def running(self) -> int:
        """Slots in use."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Predictions that wait for a slot, with those being admitted."""
        return len(self._queue) + len(self._continuing) + self._reserved

    # -- admission ------------------------------------------------------------------------------

    async def admit(self, request: GenerationRequest) -> int:
        """Judge a request and reserve a place in the queue; return its exact input tokens.

        The place must be given back by `enqueue` or `release`.

        Raises:
            InvalidRequest, ContextExceeded, UnsupportedByEngine, QueueFull, EngineNotReady.
        """
        info = await self.readiness.require()
        check_request(
            request, engine=info.engine, capabilities=info.request_fields, chat_template=info.chat_template
        )
        free = max(0, info.slots - self.running)
        check_queue(
            waiting=self.waiting,
            limit=self._settings.queue_limit + free,
            slots=info.slots,
            mean_run=timedelta(seconds=sum(self._run_seconds) / len(self._run_seconds)),
        )
        self._reserved += 1
        try:
            input_tokens = await self.readiness.count(request.prompt, effective_constraint(request))
            token_budget(request, input_tokens=input_tokens, context_tokens=info.context_tokens)
        except BaseException:
            self._reserved -= 1
            raise
        return input_tokens

    def release(self) -> None:
        """Give back a place that `admit` reserved."""
        self._reserved -= 1

    # -- queue ----------------------------------------------------------------------------------

    def enqueue(self, live: LivePrediction, *, reserved: bool = False) -> None:
        """Put a prediction into the queue, behind those of its priority."""
        if reserved:
            self._reserved -= 1
        self._queue.push(live)
        self._pump()

    def finish(self, live: LivePrediction) -> None:
        """Carry out an ending that `live.close` has accepted: leave the queue, or stop the engine."""
        if self._queue.discard(live):
            self._settle(live, live.staged_record.usage)
            return
        job_id = self._job_of.get(live.id)
        if job_id is None:
            if live.id not in self._continuing:
                self._settle(live, live.staged_record.usage)
            return
        self._host.cancel(job_id)
        if self._tasks is not None:
            self._tasks.start_soon(self._settle_late, live)

    async def _settle_late(self, live: LivePrediction) -> None:
        with anyio.move_on_after(CONFIRM_WAIT.total_seconds()):
            await live.done.wait()
        self._settle(live, live.staged_record.usage)

    def _settle(self, live: LivePrediction, usage: Usage) -> None:
        live.settle(self._clock.now(), usage)
        self._writer.notice(live)

    def _end(self, live: LivePrediction, ending: Ending, usage: Usage | None = None) -> None:
        live.close(ending)
        self._settle(live, usage or live.staged_record.usage)

    # -- slots ----------------------------------------------------------------------------------

    def pause(self) -> None:
        """Start nothing more (the service is stopping)."""
        self._paused = True

    def _pump(self) -> None:
        while (info := self.readiness.info) and self.readiness.ready and not self._paused:
            if len(self._running) + len(self._continuing) >= info.slots:
                return
            live = self._queue.try_pop()
            if live is None:
                return
            if live.needs_claim:
                assert self._tasks is not None
                self._continuing.add(live.id)
                self._tasks.start_soon(self._continue, live)
            else:
                self._submit(live)

    async def _continue(self, live: LivePrediction) -> None:
        """Claim a prediction that another claim has begun, and go on after its log."""
        try:
            await self._claim(live)
        except (EngineNotReady, InvalidRequest, PredictionNotFound) as error:
            self._continuing.discard(live.id)
            if isinstance(error, EngineNotReady) and self.readiness.state is not ModelState.FAILED:
                self._queue.push(live, front=True)
            else:
                self._end(live, Ending(Status.FAILED, FinishReason.ERROR, error=error.message))
        else:
            self._continuing.discard(live.id)
            if live.ending is not None:
                self._settle(live, live.staged_record.usage)
            elif not self.readiness.ready or self._paused:
                self._queue.push(live, front=True)
            elif ending := self._ending_instead(live):
                self._end(live, ending)
            else:
                self._submit(live)
        self._pump()

    async def _claim(self, live: LivePrediction) -> None:
        assert live.record.request is not None
        await self._writer.flush(live)
        if not live.input_tokens:
            live.input_tokens = await self.readiness.count(live.record.request.prompt)
        while True:
            try:
                record = await self._store.claim(live.id)
            except StoreUnavailable:
                await anyio.sleep(CLAIM_RETRY.total_seconds())
            else:
                live.claim(record)
                log.info("prediction_claimed", prediction_id=live.id, epoch=record.epoch)
                return

    def _ending_instead(self, live: LivePrediction) -> Ending | None:
        return ending_instead(
            generated_tokens=live.record.usage.output_tokens,
            budget_tokens=self._budget(live),
            stale_claims=live.stale_claims,
            claim_limit=self._settings.claim_limit,
        )

    def _budget(self, live: LivePrediction) -> int:
        info = self.readiness.info
        assert live.record.request is not None and info is not None
        return token_budget(
            live.record.request, input_tokens=live.input_tokens, context_tokens=info.context_tokens
        )

    def _submit(self, live: LivePrediction) -> None:
        request = live.record.request
        assert request is not None
        generated = live.staged_record.usage.output_tokens
        ids = exact_token_ids(live.decided)
        job = HostJob(
            id=f"{live.id}.{live.record.epoch}",
            request=with_seed(request, live.id),
            max_tokens=self._budget(live) - generated,
            text=logged_text(live.decided),
            token_ids=ids or (),
            token_ids_exact=ids is not None,
            generated_tokens=generated,
            replay=worth_replaying(request, generated),
        )
        self._running[job.id] = _Running(live, self._clock.monotonic(), generated)
        self._job_of[live.id] = job.id
        self._host.submit(job)
        if live.staged_record.status is Status.STARTING:
            now = self._clock.now()
            live.stage(Started(now, live.input_tokens), now)
            self._writer.notice(live)

    # -- what the engine reports ----------------------------------------------------------------

    async def run(self) -> None:
        """Run the engine and serve its events until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._host.run)
            while True:
                for event in await self._host.receive():
                    self._handle(event)
                self._pump()

    def _handle(self, event: HostEvent) -> None:
        match event:
            case JobOutput():
                self._output(event)
            case JobEnded():
                self._ended(event)
            case JobPrefilled():
                pass
            case EngineUp(info):
                self._up(info)
            case EngineDown():
                self._down(event)

    def _output(self, event: JobOutput) -> None:
        running = self._running.get(event.job_id)
        if running is None or running.live.ending is not None:
            return
        output = Output(event.text, event.token_ids, event.token_count, event.logprobs, event.aligned)
        running.live.stage(output, self._clock.now())
        self._writer.notice(running.live)

    def _ended(self, event: JobEnded) -> None:
        running = self._running.pop(event.job_id, None)
        if running is None:
            return
        live = running.live
        self._job_of.pop(live.id, None)
        self._run_seconds.append(self._clock.monotonic() - running.began)
        usage = Usage(
            input_tokens=event.input_tokens or live.input_tokens,
            cached_input_tokens=event.cached_tokens,
            output_tokens=running.tokens_before + event.output_tokens,
        )
        if event.error:
            log.warning("generation_failed", prediction_id=live.id, detail=event.error)
        self._end(live, _ending(event), usage)

    def _up(self, info: EngineInfo) -> None:
        self.readiness.up(info)
        attention = {"attention": info.attention} if info.attention else {}
        log.info("engine_ready", model=self.model, engine=info.engine, slots=info.slots, **attention)

    def _down(self, event: EngineDown) -> None:
        cause, _, last_words = event.cause.partition("; it last said: ")
        last = {"content.last_words": last_words}
        log.warning("engine_lost", model=self.model, cause=cause, final=event.final, **last)
        lost = [running.live for running in self._running.values()]
        self._running.clear()
        self._job_of.clear()
        if event.final:
            self.readiness.down(final=True)
            while (waiting := self._queue.try_pop()) is not None:
                lost.append(waiting)
            error = "the model could not be loaded"
            for live in lost:
                self._end(live, Ending(Status.FAILED, FinishReason.ERROR, error=error))
            return
        self.readiness.down(final=False)
        for live in reversed(lost):
            if live.ending is not None:
                self._settle(live, live.staged_record.usage)
            else:
                live.needs_claim = True
                self._queue.push(live, front=True)


def _ending(event: JobEnded) -> Ending:
    """Return how a prediction ends whose job the engine has ended by itself."""
    match event.reason:
        case EndReason.EOS:
            return Ending(Status.SUCCEEDED, FinishReason.STOP, event.matched_stop)
        case EndReason.LENGTH:
            return Ending(Status.SUCCEEDED, FinishReason.LENGTH)
        case EndReason.CANCELED | EndReason.FAILED:
            return Ending(Status.FAILED, FinishReason.ERROR, error=event.error or "generation stopped")
