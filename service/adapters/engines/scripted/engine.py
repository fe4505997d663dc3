"""`ScriptedEngine`: the `Engine` port on a script, with delays, faults and paced steps.

One thread runs all jobs off a heap of due times. Without delays it is saturated: every job gets a
token each turn. With `rate` it is a step engine: at each tick of one common clock every generating
job gets one token, all within one turn, as continuous batching does. Delays are real time: this is
an engine's own process, which has no other clock.
"""

from __future__ import annotations

import heapq
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from service.adapters.engines.scripted import tokens
from service.adapters.engines.scripted.script import Reading, Token, read
from service.domain.events import TokenLogprob, TopLogprob
from service.domain.request import Constraint, Prompt, Sampling
from service.domain.stop import TokenPiece
from service.ports.engine import (
    Capability,
    ConstraintError,
    Deliver,
    Ended,
    EndReason,
    EngineEvent,
    EngineInfo,
    EngineLoadError,
    Job,
    Prefilled,
    Produced,
    PromptError,
)

CAPABILITIES = frozenset(
    capability.value
    for capability in (
        Capability.TYPICAL_P,
        Capability.LOGIT_BIAS,
        Capability.MIN_TOKENS,
        Capability.STOP_TOKEN_IDS,
        Capability.IGNORE_EOS,
        Capability.LOGPROBS,
    )
)
"""Everything but constraints: nothing here could keep them."""


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """How the engine behaves where a script does not say."""

    slots: int = 8
    context_tokens: int = 4096
    text_tokens: int = 64
    """Words of a text without a script."""
    rate: float | None = None
    """Tokens per second for every job, in common steps; None for no pacing."""
    delay_ms: float = 0
    """Before each token of a script that names no delay."""
    prefill_batch_tokens: int = 512
    load_ms: float = 0
    """How long loading takes."""
    load_error: str = ""
    """Loading fails with this text."""
    load_hangs: bool = False
    crash_file: str = ""
    """Where `crash_times` is counted, so that it holds over restarts."""
    capabilities: tuple[str, ...] | None = None
    """Claimed instead of the true ones, for tests of what depends on them."""
    tool_format: str = "hermes"
    """Claimed, as a script can play calls in any format; empty: tools are refused."""


_NO_SAMPLING = Sampling()


class _Run:
    """One job in its slot."""

    def __init__(self, job: Job, deliver: Deliver, reading: Reading, settings: ScriptedSettings) -> None:
        self.job = job
        self.deliver = deliver
        self.reading = reading
        self.done = 0
        self.produced = 0
        self.started = False
        self.ending = False
        self.ticket = 0
        script = reading.script
        self.batch = max(1, script.prefill_tokens or settings.prefill_batch_tokens)
        given = settings.delay_ms if script.delay_ms is None else script.delay_ms
        self.delays = [given] if isinstance(given, (int, float)) else given or [0.0]

    def prefill_delay_s(self) -> float:
        """Return how long the next batch takes."""
        total = len(self.job.token_ids)
        return self.reading.script.prefill_ms / 1000 * min(self.batch, total - self.done) / max(1, total)

    def token_delay_s(self) -> float:
        """Return how long the next token takes."""
        place = self.reading.source.place
        first = self.reading.script.first_delay_ms if place == 0 else 0.0
        return (first + self.delays[min(place, len(self.delays) - 1)]) / 1000


class ScriptedEngine:
    """See the module. `clock` gives seconds that never step back."""

    def __init__(self, settings: ScriptedSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._wake = threading.Condition(threading.Lock())
        self._runs: dict[str, _Run] = {}
        self._arrived: list[_Run] = []
        self._refused: list[tuple[Deliver, Ended]] = []
        self._canceled: list[_Run] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._heap: list[tuple[float, int, _Run]] = []
        self._tickets = 0

    def load(self, progress: Callable[[float], None]) -> EngineInfo:
        """Wait as the settings say, then start the thread."""
        settings = self._settings
        progress(0.0)
        if settings.load_hangs:
            threading.Event().wait()
        for quarter in range(1, 5):
            if settings.load_ms:
                time.sleep(settings.load_ms / 4000)
            progress(quarter / 4)
        if settings.load_error:
            raise EngineLoadError(settings.load_error)
        self._thread = threading.Thread(target=self._work, name="scripted-engine", daemon=True)
        self._thread.start()
        claimed = settings.capabilities
        return EngineInfo(
            engine="scripted",
            slots=settings.slots,
            context_tokens=settings.context_tokens,
            vocabulary_size=tokens.VOCABULARY_SIZE,
            chat_template=True,
            eos_token_ids=(tokens.EOS,),
            capabilities=CAPABILITIES if claimed is None else frozenset(claimed),
            tool_format=settings.tool_format,
        )

    def prepare(self, prompt: Prompt, continuation: str = "") -> tuple[int, ...]:
        """Tokenise; a script that cannot be read is found here already."""
        ids = tokens.encode_prompt(prompt, continuation)
        read(ids, sampling=_NO_SAMPLING, word_total=0)
        return ids

    def check(self, constraint: Constraint) -> None:
        """Take any, as the settings claim to be able to; without that no request comes here."""
        if self._settings.capabilities is None:
            raise ConstraintError("this engine cannot keep constraints")

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Hand the job to the thread."""
        run, refusal = None, ""
        try:
            reading = read(job.token_ids, job.sampling, self._settings.text_tokens)
            run = _Run(job, deliver, reading, self._settings)
        except PromptError as error:
            refusal = str(error)
        if job.constraint is not None and self._settings.capabilities is None:
            refusal = "this engine cannot keep constraints"
        if len(job.token_ids) >= self._settings.context_tokens:
            refusal = "the prompt leaves no room in the context"
        with self._wake:
            if run is None or refusal:
                ended = Ended(job.id, EndReason.FAILED, error=refusal, invalid=True)
                self._refused.append((deliver, ended))
            else:
                self._runs[job.id] = run
                self._arrived.append(run)
            self._wake.notify()

    def cancel(self, job_id: str) -> None:
        """Mark the job; the thread ends it in its next turn, or `cancel_takes_ms` later."""
        with self._wake:
            run = self._runs.get(job_id)
            if run is not None:
                self._canceled.append(run)
                self._wake.notify()

    def close(self) -> None:
        """End all jobs; return when the thread is over."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._news() and self._wait_s() > 0:
                    self._wake.wait(None if not self._heap else self._wait_s())
                closing, self._closing = self._closing, False
                arrived, self._arrived = self._arrived, []
                canceled, self._canceled = self._canceled, []
                refused, self._refused = self._refused, []
            for deliver, ended in refused:
                self._deliver(deliver, ended)
            for run in arrived:
                self._push(run, self._clock() + run.prefill_delay_s())
            for run in canceled:
                self._cancel(run)
            if closing:
                for run in list(self._runs.values()):
                    self._end(run, EndReason.CANCELED)
                return
            self._turn()

    def _news(self) -> bool:
        return bool(self._closing or self._arrived or self._canceled or self._refused)

    def _wait_s(self) -> float:
        return self._heap[0][0] - self._clock() if self._heap else 1.0

    def _turn(self) -> None:
        """Give every due job its next bit."""
        now = self._clock()
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, ticket, run = heapq.heappop(self._heap)
            if ticket == run.ticket:
                due.append(run)
        for run in due:
            try:
                self._step(run, now)
            except Exception as error:  # noqa: BLE001 - the engine's thread: a bad job ends alone
                traceback.print_exc(file=sys.stderr)
                self._end(run, EndReason.FAILED, error=f"{type(error).__name__}: {error}")

    def _push(self, run: _Run, due: float) -> None:
        self._tickets += 1
        run.ticket = self._tickets
        heapq.heappush(self._heap, (due, run.ticket, run))

    def _cancel(self, run: _Run) -> None:
        if run.ending or run.job.id not in self._runs:
            return
        run.ending = True
        takes_s = run.reading.script.cancel_takes_ms / 1000
        if takes_s > 0:
            self._push(run, self._clock() + takes_s)
        else:
            self._end(run, EndReason.CANCELED)

    def _step(self, run: _Run, now: float) -> None:
        total = len(run.job.token_ids)
        if run.ending:
            self._end(run, EndReason.CANCELED)
        elif run.done < total or not run.started:
            self._prefill(run, now, total)
        else:
            self._generate(run, now)

    def _prefill(self, run: _Run, now: float, total: int) -> None:
        if run.reading.script.oom:
            self._end(run, EndReason.FAILED, error="out of memory: the scripted engine has none left")
            return
        run.done = min(total, run.done + run.batch)
        self._deliver(run.deliver, Prefilled(run.job.id, run.done, total))
        if run.done < total:
            self._push(run, now + run.prefill_delay_s())
            return
        run.started = True
        self._push(run, self._next_due(run, now))

    def _next_due(self, run: _Run, now: float) -> float:
        if self._settings.rate is None:
            return now + run.token_delay_s()
        tick_s = 1 / self._settings.rate
        return (int((now + run.token_delay_s()) / tick_s) + 1) * tick_s

    def _generate(self, run: _Run, now: float) -> None:
        job, script, source = run.job, run.reading.script, run.reading.source
        place = source.place
        if script.fail_after == place:
            message = script.fail_message * script.fail_repeat
            self._end(run, EndReason.FAILED, error=message, invalid=script.invalid)
            return
        if script.raise_after == place:
            raise RuntimeError(script.fail_message)
        if script.crash_after == place and self._may_crash(script.crash_times):
            os.kill(os.getpid(), signal.SIGKILL)
        if script.hang_after == place:
            threading.Event().wait()
        token = source.next(may_end=not job.ignore_eos and run.produced >= job.min_tokens)
        if token is None:
            eos = script.end == "eos"
            self._end(run, EndReason.EOS if eos else EndReason.LENGTH, extra=int(eos))
            return
        stops = token.id in job.stop_token_ids and run.produced >= job.min_tokens
        run.produced += token.count
        self._deliver(run.deliver, Produced(job.id, _piece(token, job.logprobs)))
        if stops:
            self._end(run, EndReason.EOS)
        elif run.produced >= job.max_tokens:
            self._end(run, EndReason.LENGTH)
        else:
            self._push(run, self._next_due(run, now))

    def _may_crash(self, times: int | None) -> bool:
        if times is None or not self._settings.crash_file:
            return True
        counter = Path(self._settings.crash_file)
        so_far = int(counter.read_text()) if counter.exists() else 0
        if so_far >= times:
            return False
        counter.write_text(str(so_far + 1))
        return True

    def _end(
        self, run: _Run, reason: EndReason, *, extra: int = 0, error: str = "", invalid: bool = False
    ) -> None:
        """Free the slot, then say so. `extra` counts the token that ended it without text."""
        run.ticket = 0
        with self._wake:
            if self._runs.pop(run.job.id, None) is None:
                return
        ended = Ended(run.job.id, reason, run.produced + extra, error=error, invalid=invalid)
        self._deliver(run.deliver, ended)

    @staticmethod
    def _deliver(deliver: Deliver, event: EngineEvent) -> None:
        try:
            deliver(event)
        except Exception:  # noqa: BLE001 - the engine's thread: a receiver's fault stays its own
            traceback.print_exc(file=sys.stderr)


def _piece(token: Token, logprobs: int | None) -> TokenPiece:
    ids = () if token.id is None else (token.id,)
    if logprobs is None:
        return TokenPiece(token.data, ids, token.count)
    text = token.data.decode("utf-8", "replace")
    own = TopLogprob(text, token.data, token.id, -0.125)
    others = (
        TopLogprob(f" {word}0", f" {word}0".encode(), tokens.word_id(i, 0), -2.0 - i)
        for i, word in enumerate(tokens.WORDS[: max(0, logprobs - 1)])
    )
    top = (own, *others) if logprobs else ()
    return TokenPiece(token.data, ids, token.count, (TokenLogprob(text, token.data, token.id, -0.125, top),))
