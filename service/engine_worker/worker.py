"""The worker: take the service's commands, run the engine, answer."""

from __future__ import annotations

import sys
import threading
import traceback
from functools import partial
from typing import assert_never

from service.domain.request import Constraint, Prompt
from service.engine_frames import (
    Cancel,
    Close,
    Command,
    Count,
    Counted,
    CountFailed,
    Fault,
    FrameError,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    Submit,
    constraint_from_frame,
    job_from_frame,
    prompt_from_frame,
)
from service.engine_worker.engines import build_engine
from service.engine_worker.error_text import error_text
from service.engine_worker.job import WorkerJob
from service.engine_worker.outbox import Outbox
from service.engine_worker.prompts import PromptThreads
from service.ports.engine import (
    ConstraintError,
    EndReason,
    Engine,
    EngineInfo,
    EngineLoadError,
    PromptError,
)
from service.ports.engine_host import HostJob, JobEnded


class Worker:
    """One engine and its jobs. `handle` and `tick` belong to one thread and never block."""

    def __init__(self, outbox: Outbox, prompts: PromptThreads) -> None:
        self._outbox = outbox
        self._prompts = prompts
        self._engine: Engine | None = None
        self._info: EngineInfo | None = None
        self._jobs: dict[str, WorkerJob] = {}
        """At most as many as there are slots."""
        self._loading = False

    def handle(self, command: Command) -> bool:
        """Do what the service wants; return False when it wants the end."""
        match command:
            case Submit():
                self._submit(job_from_frame(command))
            case Cancel(job_id):
                job = self._jobs.get(job_id)
                if job is not None:
                    job.cancel()
            case Count(number, prompt, constraint):
                wanted = constraint_from_frame(constraint)
                self._count(number, prompt_from_frame(prompt), wanted)
            case Load():
                self._load(command)
            case Close():
                return False
            case _:
                assert_never(command)
        return True

    def tick(self) -> None:
        """Give up what takes too long. Raises `PromptThreadsLost`."""
        self._prompts.expire()

    def close(self) -> None:
        """End all jobs and free the model."""
        if self._engine is not None and self._info is not None:
            self._engine.close()

    def _load(self, command: Load) -> None:
        if self._loading:
            raise FrameError("a second load")
        self._loading = True
        threading.Thread(target=self._load_model, args=(command,), name="load", daemon=True).start()

    def _load_model(self, command: Load) -> None:
        try:
            engine = build_engine(command.engine, command.settings)
            info = engine.load(self._progress)
        except EngineLoadError as error:
            self._outbox.reply(LoadFailed(error_text(str(error))))
            return
        except Exception as error:  # noqa: BLE001 - the engine's own code, in its thread
            traceback.print_exc(file=sys.stderr)
            self._outbox.reply(LoadFailed(error_text(f"{type(error).__name__}: {error}")))
            return
        self._engine, self._info = engine, info
        self._outbox.reply(Loaded(info))

    def _progress(self, fraction: float) -> None:
        self._outbox.reply(LoadProgress(fraction))

    def _submit(self, job: HostJob) -> None:
        engine, info = self._engine, self._info
        if engine is None or info is None or job.id in self._jobs or len(self._jobs) >= info.slots:
            error = "the engine has no slot for this job"
            self._outbox.ended(JobEnded(job.id, EndReason.FAILED, error=error))
            return
        running = WorkerJob(job, engine, info, self._outbox, self._forget, self._prepare)
        self._jobs[job.id] = running
        self._prepare(running)

    def _prepare(self, job: WorkerJob) -> None:
        self._prompts.run(job.prepare, job.fail)

    def _forget(self, job_id: str) -> None:
        del self._jobs[job_id]

    def _count(self, number: int, prompt: Prompt, constraint: Constraint | None) -> None:
        engine = self._engine
        if engine is None or self._prompts.full:
            self._count_failed(number, "the model is not loaded, or too busy")
            return

        def count() -> None:
            try:
                tokens = len(engine.prepare(prompt))
                if constraint is not None:
                    engine.check(constraint)
            except PromptError as error:
                self._outbox.reply(CountFailed(number, error_text(str(error)), Fault.PROMPT))
            except ConstraintError as error:
                self._outbox.reply(CountFailed(number, error_text(str(error)), Fault.CONSTRAINT))
            else:
                self._outbox.reply(Counted(number, tokens))

        self._prompts.run(count, partial(self._count_failed, number))

    def _count_failed(self, number: int, error: str) -> None:
        self._outbox.reply(CountFailed(number, error_text(error), Fault.ENGINE))
