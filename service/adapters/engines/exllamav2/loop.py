"""The thread that drives the generator: jobs in, events out.

Owns the short queue before the library, admission by pages, and the order of a job's events. The
library reserves the pages of prompt and max_tokens when a job starts and knows no preemption, and
it computes a chunk of every unread prompt in each step. So jobs start in the order of their
arrival, one when its pages are free and the unread prompts of a step stay within one chunk: a long
prompt slows the running streams by one chunk a step, however many wait.

An exception from the library's step ends the thread, and with it the engine's process: its page
table is then in no known state. The service starts a new process, which continues the jobs.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from service.adapters.engines.exllamav2.generator import Generator, Over, Running
from service.adapters.engines.exllamav2.library_job import Sampled
from service.adapters.engines.exllamav2.logprobs import token_logprob
from service.adapters.engines.exllamav2.vocabulary import Vocabulary
from service.domain.stop import TokenPiece
from service.ports.engine import Deliver, Ended, EndReason, EngineEvent, Job, Prefilled, Produced


@dataclass(eq=False, slots=True)
class _Run:
    """One submitted job, until its end is delivered."""

    job: Job
    deliver: Deliver
    matcher: Any = None
    running: Running | None = None
    told: int = -1
    """Prompt tokens reported."""
    output_tokens: int = 0
    broken: bool = False
    """Its receiver raised."""


class Loop:
    """See the module. `submit`, `refuse` and `cancel` are for any thread."""

    def __init__(self, generator: Generator, vocabulary: Vocabulary, eos: frozenset[int]) -> None:
        self._generator = generator
        self._vocabulary = vocabulary
        self._eos = eos
        self._wake = threading.Condition()
        # Bound: the caller submits no more jobs than there are slots.
        self._inbox: list[Callable[[], None]] = []
        self._closing = False
        self._runs: dict[str, _Run] = {}
        self._waiting: deque[_Run] = deque()
        self._active: list[_Run] = []
        self._thread = threading.Thread(target=self._work, name="exllamav2", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def expect(self, job: Job, deliver: Deliver) -> None:
        """Announce a job: from here on it can be canceled, and gets its end."""
        run = _Run(job, deliver)
        self._post(lambda: self._expect(run))

    def submit(self, job_id: str, matcher: Any = None) -> None:
        """Queue an announced job, with its constraint compiled."""
        self._post(lambda: self._queue(job_id, matcher))

    def refuse(self, job_id: str, error: str) -> None:
        """End an announced job that is itself at fault."""
        self._post(lambda: self._end_by_id(job_id, EndReason.FAILED, error, invalid=True))

    def cancel(self, job_id: str) -> None:
        """End a job before the next step; nothing happens if there is none."""
        self._post(lambda: self._end_by_id(job_id, EndReason.CANCELED))

    def close(self) -> None:
        """End all jobs as canceled and stop; return when the thread is over."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            self._inbox.append(command)
            self._wake.notify()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._active or self._waiting or self._closing):
                    self._wake.wait()
                commands, self._inbox = self._inbox, []
                closing = self._closing
            for command in commands:
                command()
            if closing:
                for run in list(self._runs.values()):
                    self._end(run, EndReason.CANCELED)
                return
            self._start_waiting()
            if self._active:
                self._generator.step()
                for run in self._active.copy():
                    self._report(run)

    # -- commands, in the thread

    def _expect(self, run: _Run) -> None:
        self._runs[run.job.id] = run

    def _queue(self, job_id: str, matcher: Any) -> None:
        run = self._runs.get(job_id)
        if run is not None:
            run.matcher = matcher
            self._waiting.append(run)

    def _end_by_id(self, job_id: str, reason: EndReason, error: str = "", *, invalid: bool = False) -> None:
        run = self._runs.get(job_id)
        if run is not None:
            self._end(run, reason, error, invalid=invalid)

    # -- admission

    def _start_waiting(self) -> None:
        generator = self._generator
        while self._waiting:
            run = self._waiting[0]
            if not self._chunk_has_room(run):
                return
            running = run.running
            if running is None:
                try:
                    running = run.running = generator.prepare(run.job, run.matcher)
                except Exception as error:  # noqa: BLE001 - the engine's thread: a bad job ends alone
                    traceback.print_exc(file=sys.stderr)
                    self._end(run, EndReason.FAILED, repr(error))
                    continue
            if not generator.fits(running):
                if self._active:
                    return
                self._end(run, EndReason.FAILED, "its pages do not fit an empty cache")
                continue
            self._waiting.popleft()
            generator.start(running)
            self._active.append(run)

    def _chunk_has_room(self, run: _Run) -> bool:
        """Whether one more prompt keeps a step's prompt tokens within a chunk; one always may."""
        chunk = self._generator.chunk_tokens
        unread = [min(chunk, r.running.prompt_left) for r in self._active if r.running is not None]
        busy = sum(unread)
        return busy == 0 or busy + min(chunk, len(run.job.token_ids)) <= chunk

    # -- what a step brought

    def _report(self, run: _Run) -> None:
        running = run.running
        if running is None or run.job.id not in self._runs:
            return
        sampled = running.take()
        self._report_prompt(run, running)
        failure = running.failure
        if failure:
            self._end(run, EndReason.FAILED, failure)
            return
        if reason := self._report_tokens(run, running, sampled):
            self._end(run, reason)
        elif run.broken:
            self._end(run, EndReason.FAILED, "the receiver of events failed")

    def _report_prompt(self, run: _Run, running: Running) -> None:
        done, total = running.prompt_done, len(run.job.token_ids)
        if done > run.told and run.told < total:
            run.told = done
            self._deliver(run, Prefilled(run.job.id, done, total, min(running.cached_tokens, done)))

    def _report_tokens(self, run: _Run, running: Running, sampled: list[Sampled]) -> EndReason | None:
        """Deliver the tokens; return why the job is over, None if it is not."""
        job = run.job
        stops = frozenset(job.stop_token_ids)
        for i, one in enumerate(sampled):
            run.output_tokens += 1
            last = i == len(sampled) - 1
            if last and running.over is Over.TOKEN:
                return EndReason.EOS
            self._deliver(run, Produced(job.id, self._piece(one)))
            if one.token_id in stops and run.output_tokens > job.min_tokens:
                return EndReason.EOS
            if run.output_tokens >= job.max_tokens:
                return EndReason.LENGTH
        return None

    def _piece(self, one: Sampled) -> TokenPiece:
        data = self._vocabulary.pieces[one.token_id]
        if one.token_id in self._eos:
            data = b""
        logprobs = () if one.row is None else (token_logprob(one.token_id, one.row, self._vocabulary),)
        return TokenPiece(data, (one.token_id,), 1, logprobs)

    def _end(self, run: _Run, reason: EndReason, error: str = "", *, invalid: bool = False) -> None:
        """Free the job's slot and pages, then say so."""
        if self._runs.pop(run.job.id, None) is None:
            return
        cached = 0
        if run in self._active:
            self._active.remove(run)
            if run.running is not None:
                cached = run.running.cached_tokens
                self._generator.cancel(run.running)
        elif run in self._waiting:
            self._waiting.remove(run)
        self._deliver(run, Ended(run.job.id, reason, run.output_tokens, cached, error, invalid))

    def _deliver(self, run: _Run, event: EngineEvent) -> None:
        try:
            run.deliver(event)
        except Exception:  # noqa: BLE001 - the engine's thread: a receiver's fault stays its own
            traceback.print_exc(file=sys.stderr)
            run.broken = True
