"""One job in the worker: from the request to tokens, from the engine's pieces to final text.

A stop that matches cancels the engine's job at once; the job's end is reported when the engine
confirms that the slot is free, with the reason EOS whatever the engine called it.

An interrupted prediction goes on either behind a prefill of its log or by replay (see `replay`); a
replay that diverges is given up for the prefill, in the same slot.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import assert_never

from service.domain.stop import Released, TextAssembler, TokenPiece
from service.domain.tools import effective_constraint
from service.engine_frames import OutputDraft
from service.engine_worker.error_text import error_text
from service.engine_worker.outbox import Outbox
from service.engine_worker.replay import Diverged, Replay
from service.ports.engine import (
    Ended,
    EndReason,
    Engine,
    EngineEvent,
    EngineInfo,
    Job,
    Prefilled,
    Produced,
    PromptError,
)
from service.ports.engine_host import HostJob, JobEnded, JobPrefilled


class WorkerJob:
    """Run one `HostJob`. `prepare` is for a prompt thread, `deliver` for the engine's thread."""

    def __init__(
        self,
        job: HostJob,
        engine: Engine,
        info: EngineInfo,
        outbox: Outbox,
        forget: Callable[[str], None],
        restart: Callable[[WorkerJob], None] = lambda job: job.prepare(),
    ) -> None:
        """`forget` is called once, before the end is said; `restart` lets `prepare` run again."""
        self.id = job.id
        self._job = job
        self._engine = engine
        self._info = info
        self._outbox = outbox
        self._forget = forget
        self._restart = restart
        self._replay: Replay | None = None
        if job.replay and job.text:
            self._replay = Replay(job.text, job.generated_tokens)
        self._assembler = self._new_assembler()
        self._engine_id = job.id
        # The first orders submit against cancel and is never taken by the engine's thread, which
        # may hold a lock that the engine's own submit waits for.
        self._submission = threading.Lock()
        self._ending = threading.Lock()
        self._over = False
        self._submitted = False
        self._canceled = False
        self._diverged = False
        self._input_tokens = 0
        self._matched: str | int | None = None
        self._fault = ""

    def _new_assembler(self) -> TextAssembler:
        stopping = self._job.request.stopping
        return TextAssembler(
            stopping.stop,
            stopping.stop_token_ids,
            min_tokens=stopping.min_tokens,
            resumed_tokens=self._resumed_tokens,
        )

    @property
    def _resumed_tokens(self) -> int:
        """Tokens that are fed as context and not generated again."""
        return 0 if self._replay else self._job.generated_tokens

    @property
    def _repeated_tokens(self) -> int:
        """Tokens that the engine generates again in this job, or did."""
        return self._job.generated_tokens if self._replay else 0

    def prepare(self) -> None:
        """Turn the request into tokens and hand it to the engine, unless it is over by now."""
        try:
            context = self._context()
        except PromptError as error:
            self.fail(str(error), invalid=True)
            return
        room = self._info.context_tokens - len(context)
        if room < 1:
            self._no_room(len(context))
            return
        with self._submission:
            if self._over:
                return
            self._engine.submit(self._engine_job(context, room), self.deliver)
            self._submitted = True

    def cancel(self) -> None:
        """End the job: at once while its prompt is being prepared, else when the engine has."""
        with self._submission:
            if self._submitted:
                self._canceled = True
                self._engine.cancel(self._engine_id)
            else:
                self._end(JobEnded(self.id, EndReason.CANCELED))

    def fail(self, error: str, *, invalid: bool = False) -> None:
        """End the job before the engine has it; nothing happens if it does."""
        with self._submission:
            if not self._submitted:
                self._end(JobEnded(self.id, EndReason.FAILED, error=error_text(error), invalid=invalid))

    def deliver(self, event: EngineEvent) -> None:
        """Take an event of the engine. A fault of ours ends this job alone."""
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001 - the engine's thread: a bad job ends alone
            traceback.print_exc(file=sys.stderr)
            self._fault = self._fault or f"the worker failed: {type(error).__name__}"
            if isinstance(event, Ended):
                self._end(self._summary(event, EndReason.FAILED, event.output_tokens))
            else:
                self._engine.cancel(self._engine_id)

    def _take(self, event: EngineEvent) -> None:
        match event:
            case Produced(_, piece):
                self._produced(piece)
            case Prefilled(_, done, total, cached):
                self._outbox.prefilled(JobPrefilled(self.id, done, total, cached))
            case Ended():
                self._ended(event)
            case _:
                assert_never(event)

    def _context(self) -> tuple[int, ...]:
        job, prepare = self._job, self._engine.prepare
        prompt = prepare(job.request.prompt)
        self._input_tokens = len(prompt)
        if self._replay:
            return prompt
        if job.token_ids_exact:
            return prompt + job.token_ids
        return prepare(job.request.prompt, job.text) if job.text else prompt

    def _engine_job(self, context: tuple[int, ...], room: int) -> Job:
        request = self._job.request
        stopping = request.stopping
        return Job(
            id=self._engine_id,
            token_ids=context,
            max_tokens=min(self._job.max_tokens + self._repeated_tokens, room),
            sampling=request.sampling,
            min_tokens=max(0, stopping.min_tokens - self._resumed_tokens),
            stop_token_ids=stopping.stop_token_ids,
            ignore_eos=stopping.ignore_eos,
            constraint=effective_constraint(request),
            logprobs=request.logprobs,
        )

    def _no_room(self, tokens: int) -> None:
        if self._job.generated_tokens or self._job.text:
            self._end(JobEnded(self.id, EndReason.LENGTH, input_tokens=self._input_tokens))
            return
        limit = self._info.context_tokens
        error = f"the prompt's {tokens} tokens leave no room in the model's context of {limit}"
        self._end(JobEnded(self.id, EndReason.FAILED, error=error, invalid=True))

    def _produced(self, piece: TokenPiece) -> None:
        if self._fault or self._diverged:
            return
        assembler = self._assembler
        released = assembler.feed(piece)
        if self._replay is not None and not self._replay.over:
            released = self._compare(self._replay, released)
        if released is not None:
            self._release(released)
        if assembler.stopped:
            self._engine.cancel(self._engine_id)

    def _compare(self, replay: Replay, released: Released | None) -> Released | None:
        """Return what is new, and show that the engine is at work."""
        tokens = self._assembler.token_count
        self._outbox.prefilled(JobPrefilled(self.id, tokens, self._job.generated_tokens, 0))
        try:
            return replay.take(released) if released is not None else None
        except Diverged:
            self._diverged = True
            self._engine.cancel(self._engine_id)
            return None

    def _resume_behind_prefill(self, event: Ended) -> None:
        """Give the replay up and go on behind a prefill of the log, in the same slot."""
        if effective_constraint(self._job.request) is not None:
            self._fault = "the interrupted output could not be generated again under its constraint"
            self._end(self._summary(event, EndReason.FAILED, 0))
            return
        sys.stderr.write(f"job {self.id}: the replay diverged; going on behind a prefill\n")
        with self._submission:
            self._replay, self._diverged = None, False
            self._assembler = self._new_assembler()
            self._engine_id = f"{self.id}/2"
            self._submitted = False
        self._restart(self)

    def _release(self, released: Released) -> None:
        self._matched = released.matched_stop
        if released.text or released.token_count:
            draft = OutputDraft(
                self.id,
                released.text,
                released.token_ids,
                released.token_count,
                released.logprobs,
                released.aligned,
            )
            self._outbox.output(draft)

    def _ended(self, event: Ended) -> None:
        if self._replay is not None and not self._fault and not self._canceled:
            if event.reason in (EndReason.EOS, EndReason.LENGTH) and not self._replay.over:
                self._diverged = True
            if self._diverged:
                self._resume_behind_prefill(event)
                return
        matched = self._assembler.stopped
        rest = self._assembler.finish()
        if rest is not None:
            self._release(rest)
        reason = event.reason
        if self._fault:
            reason = EndReason.FAILED
        elif matched or (self._assembler.stopped and reason is EndReason.LENGTH):
            reason = EndReason.EOS
        tokens = self._assembler.token_count if matched else event.output_tokens
        self._end(self._summary(event, reason, max(0, tokens - self._repeated_tokens)))

    def _summary(self, event: Ended, reason: EndReason, output_tokens: int) -> JobEnded:
        failed = reason is EndReason.FAILED
        if failed and event.error:
            sys.stderr.write(f"job {self.id} failed: {event.error}\n")
        return JobEnded(
            self.id,
            reason,
            matched_stop=self._matched if reason is EndReason.EOS else None,
            input_tokens=self._input_tokens,
            cached_tokens=event.cached_tokens,
            output_tokens=output_tokens,
            error=error_text(self._fault or event.error) if failed else "",
            invalid=event.invalid and failed,
        )

    def _end(self, ended: JobEnded) -> None:
        with self._ending:
            if self._over:
                return
            self._over = True
        self._forget(self.id)
        self._outbox.ended(ended)
