"""`EngineProcess`: the `EngineHost` port over a child process and a Unix socket pair.

Owns which process there is: load, restart with growing pauses, the limits of patience. It decides
nothing about jobs: when the process goes, all of them are void and the log is the truth. `EngineLife`
is one process, `EngineLink` the socket's end; the frames are `service.engine_frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import assert_never

import anyio
import anyio.lowlevel

from service.domain.errors import EngineNotReady
from service.domain.request import Constraint, Prompt
from service.engine_frames import (
    Cancel,
    Count,
    Counted,
    CountFailed,
    Fault,
    FrameError,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    Reply,
    Step,
    constraint_to_frame,
    job_to_frame,
    prompt_to_frame,
)
from service.ports.engine import ConstraintError, EndReason, PromptError
from service.ports.engine_host import EngineDown, EngineUp, HostEvent, HostJob, JobEnded
from service.runtime.engine_life import EngineLife

_MAX_PENDING = 1 << 16
"""Events that wait for `receive`; with more the socket is not read, and the engine's process keeps them."""
_MAX_BACKLOG_BYTES = 64 * 1024 * 1024
"""Commands not yet taken by the child; with more, no count is sent. Jobs are few enough as they are."""
_QUIET_TICKS = 4


@dataclass(frozen=True, slots=True)
class EngineProcessSettings:
    """What is run and how patient we are with it."""

    engine: str
    """`llama_cpp`, `exllamav2` or `scripted`."""
    engine_settings: Mapping[str, object] = field(default_factory=dict)
    """The adapter's settings, as plain MessagePack values."""
    hang_limit: timedelta = timedelta(seconds=60)
    """With jobs and without any event for so long the process is killed. Longer than one prefill batch."""
    load_limit: timedelta = timedelta(minutes=10)
    """Start of the process to a loaded model."""
    count_limit: timedelta = timedelta(seconds=10)
    """For the answer to one `count`."""
    counts_at_once: int = 64
    """More are refused at once."""
    close_limit: timedelta = timedelta(seconds=2)
    """For freeing the model; then SIGKILL."""
    first_pause: timedelta = timedelta(milliseconds=100)
    """Before the first restart; doubled for each one after."""
    longest_pause: timedelta = timedelta(seconds=5)
    good_life: timedelta = timedelta(minutes=1)
    """Up for so long, or some output made, and the pauses begin anew."""
    load_tries: int = 3
    """Failed loads in a row after which none is tried any more."""


@dataclass(frozen=True, slots=True)
class _End:
    cause: str
    loaded: bool
    good: bool


@dataclass(slots=True)
class _Counting:
    done: anyio.Event = field(default_factory=anyio.Event)
    result: int | Exception | None = None


class EngineProcess:
    """See the module. `run` must be running for anything else to have an effect; one task receives."""

    def __init__(
        self,
        settings: EngineProcessSettings,
        *,
        on_log: Callable[[str], None] = lambda line: None,
        on_progress: Callable[[float], None] = lambda fraction: None,
    ) -> None:
        """`on_log` gets each line that the child writes to stderr, `on_progress` its load progress."""
        self._settings = settings
        self._on_log = on_log
        self._on_progress = on_progress
        self._pending: list[HostEvent] = []
        self._news = anyio.Event()
        self._life: EngineLife | None = None
        self._jobs: set[str] = set()
        """Submitted and not ended; at most the engine's slots."""
        self._canceled: set[str] = set()
        """Those of `_jobs` whose cancel has been sent."""
        self._signs = 0
        """Counts what shows that the engine works."""
        self._counts: dict[int, _Counting] = {}
        """At most `counts_at_once`."""
        self._number = 0
        self._overdue = False
        """Whether a count was not answered in time, and none has been since."""

    @property
    def pid(self) -> int | None:
        """Return the child's process id, None while there is none."""
        return None if self._life is None else self._life.process.pid

    @property
    def up(self) -> bool:
        """Whether jobs can be submitted."""
        return self._life is not None and self._life.up

    async def run(self) -> None:
        """Keep an engine running until cancelled; then its process is ended and reaped."""
        settings = self._settings
        pause, failed_loads = settings.first_pause, 0
        while True:
            end = await self._live()
            failed_loads = 0 if end.loaded else failed_loads + 1
            final = failed_loads >= settings.load_tries
            self._tell(EngineDown(end.cause, final))
            if final:
                await anyio.sleep_forever()
            if end.good:
                pause = settings.first_pause
            await anyio.sleep(pause.total_seconds())
            pause = min(2 * pause, settings.longest_pause)

    async def receive(self) -> Sequence[HostEvent]:
        """Wait for news and return all of it."""
        if self._pending:
            await anyio.lowlevel.checkpoint()
        while not self._pending:
            self._news = anyio.Event()
            await self._news.wait()
        batch, self._pending = self._pending, []
        if self._life is not None:
            self._life.link.resume()
        return batch

    def submit(self, job: HostJob) -> None:
        """Send the job. One that fits in no frame ends as FAILED at once."""
        if self._life is None or not self.up:
            return
        try:
            self._life.link.send(job_to_frame(job))
        except FrameError as error:
            self._tell(JobEnded(job.id, EndReason.FAILED, error=str(error), invalid=True))
            return
        self._jobs.add(job.id)
        self._signs += 1

    def cancel(self, job_id: str) -> None:
        """Send the cancel, once, if the job runs."""
        if self._life is not None and job_id in self._jobs and job_id not in self._canceled:
            self._canceled.add(job_id)
            self._life.link.send(Cancel(job_id))

    async def count(self, prompt: Prompt, constraint: Constraint | None = None) -> int:
        """Ask the child; see the port."""
        if self._life is None or not self.up:
            raise EngineNotReady("the model is loading; try again in a moment")
        backlog = self._life.link.backlog_bytes
        if len(self._counts) >= self._settings.counts_at_once or backlog > _MAX_BACKLOG_BYTES:
            raise EngineNotReady("the model is busy; try again in a moment")
        self._number += 1
        number, counting = self._number, _Counting()
        try:
            self._life.link.send(Count(number, prompt_to_frame(prompt), constraint_to_frame(constraint)))
        except FrameError as error:
            raise PromptError(str(error)) from error
        self._counts[number] = counting
        try:
            with anyio.move_on_after(self._settings.count_limit.total_seconds()):
                await counting.done.wait()
        finally:
            self._counts.pop(number, None)
        if isinstance(counting.result, Exception):
            raise counting.result
        if counting.result is None:
            self._overdue = self._overdue or not counting.done.is_set()
            raise EngineNotReady("the model did not answer in time; try again in a moment")
        return counting.result

    async def _live(self) -> _End:
        """Start a process and return when it is gone, all its jobs and counts with it."""
        try:
            life = self._life = await EngineLife.start()
        except OSError as error:
            return _End(f"the engine's process could not be started: {error.strerror}", False, False)
        settings = self._settings
        life.link.attach(lambda reply: self._take(life, reply), life.end)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(life.read_log, self._on_log)
                tasks.start_soon(self._watch_load, life)
                tasks.start_soon(self._watch_jobs, life)
                life.link.send(Load(settings.engine, dict(settings.engine_settings)))
                await life.over.wait()
                await life.stop(settings.close_limit)
                await life.last_words()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):  # bounded by the close limit and the reap limit
                await life.stop(settings.close_limit)
            self._forget_life()
        return _End(life.describe_end(), life.loaded.is_set(), life.good)

    def _forget_life(self) -> None:
        self._life = None
        self._jobs.clear()
        self._canceled.clear()
        self._overdue = False
        for counting in self._counts.values():
            counting.done.set()

    async def _watch_load(self, life: EngineLife) -> None:
        with anyio.move_on_after(self._settings.load_limit.total_seconds()):
            await life.loaded.wait()
        if not life.loaded.is_set():
            life.end("the model was not loaded within the load limit")
            return
        await anyio.sleep(self._settings.good_life.total_seconds())
        life.good = True

    async def _watch_jobs(self, life: EngineLife) -> None:
        """Kill an engine that has jobs and shows no sign for some ticks in a row.

        Ticks, not a clock: after a pause of our own process only one has passed, and what the
        engine sent meanwhile is read before the next.
        """
        quiet, seen = 0, self._signs
        while True:
            await anyio.sleep(self._settings.hang_limit.total_seconds() / _QUIET_TICKS)
            # A count is followed by its job: an engine that answers none would never get one.
            idle = not self._jobs and not self._overdue
            if idle or life.link.paused or self._signs != seen:
                quiet, seen = 0, self._signs
                continue
            quiet += 1
            if quiet >= _QUIET_TICKS:
                life.end(f"the engine showed no sign of life (it has {len(self._jobs)} jobs) and was killed")
                return

    def _take(self, life: EngineLife, reply: Reply) -> None:
        """Handle a reply. A step costs one decode and three list operations, whatever its size."""
        match reply:
            case Step(prefilled, outputs, ended):
                self._signs += 1
                pending = self._pending
                pending += prefilled
                pending += outputs
                if outputs:
                    life.good = True
                if ended:
                    self._note_ends(ended)
                    pending += ended
                self._news.set()
                if len(pending) > _MAX_PENDING:
                    life.link.pause()
            case Loaded(info):
                life.loaded.set()
                self._tell(EngineUp(info))
            case LoadProgress(fraction):
                self._on_progress(fraction)
            case LoadFailed(error):
                life.end(f"the model could not be loaded: {error}")
            case Counted(number, tokens):
                self._answer(number, tokens)
            case CountFailed(number, error, fault):
                self._answer(number, _refusal(error, fault))
            case _:
                assert_never(reply)

    def _note_ends(self, ended: Sequence[JobEnded]) -> None:
        for event in ended:
            self._jobs.discard(event.job_id)
            self._canceled.discard(event.job_id)

    def _answer(self, number: int, result: int | Exception | None) -> None:
        self._overdue = False
        counting = self._counts.get(number)
        if counting is not None:
            counting.result = result
            counting.done.set()

    def _tell(self, event: HostEvent) -> None:
        self._pending.append(event)
        self._news.set()


def _refusal(error: str, fault: Fault) -> Exception | None:
    """Return what a failed count raises; None when the engine, not the caller, was at fault."""
    match fault:
        case Fault.PROMPT:
            return PromptError(error)
        case Fault.CONSTRAINT:
            return ConstraintError(error)
        case Fault.ENGINE:
            return None
