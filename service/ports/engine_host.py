"""The engine host port: the service's side of an engine that lives in another process.

The host hides the process: it starts it, restarts it when it dies or hangs, and reports both as
events. The worker inside runs the text assembler, so what arrives here is final text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.events import TokenLogprob
from service.domain.request import Constraint, GenerationRequest, Prompt
from service.ports.engine import EndReason, EngineInfo


@dataclass(frozen=True, slots=True)
class HostJob:
    """One prediction's work for a slot."""

    id: str
    """`<prediction id>.<epoch>`: a claim is a job of its own."""
    request: GenerationRequest
    max_tokens: int
    """Tokens that may still be generated, at least 1."""
    text: str = ""
    """Output already in the log: generation goes on after it."""
    token_ids: tuple[int, ...] = ()
    """The ids of `text`; used instead of it when `token_ids_exact`."""
    token_ids_exact: bool = False
    generated_tokens: int = 0
    """Tokens already generated for `text`; counts towards min_tokens."""
    replay: bool = False
    """Generate `text` again, unseen, instead of feeding it; fed after all if that diverges."""


@dataclass(frozen=True, slots=True)
class JobPrefilled:
    """Progress on the prompt; the first one says the job has a slot."""

    job_id: str
    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class JobOutput:
    """Released text (see `Released`): complete characters that no stop can swallow."""

    job_id: str
    text: str
    token_ids: tuple[int, ...] = ()
    token_count: int = 0
    """Sampled tokens since the job's last output."""
    logprobs: tuple[TokenLogprob, ...] = ()
    aligned: bool = True
    """See `service.domain.events.Output`."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The slot is free."""

    job_id: str
    reason: EndReason
    """EOS also for a matched stop string or stop token id."""
    matched_stop: str | int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """Sampled tokens of this job in all, swallowed ones included."""
    error: str = ""
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class EngineUp:
    """The engine is loaded (first time or again): all slots are free."""

    info: EngineInfo


@dataclass(frozen=True, slots=True)
class EngineDown:
    """The engine's process is gone: every job submitted to it is void and no more of its events come."""

    cause: str
    """For the log."""
    final: bool = False
    """The model cannot be loaded; no restart is tried any more."""


HostEvent = JobPrefilled | JobOutput | JobEnded | EngineUp | EngineDown


class EngineHost(Protocol):
    """Promises:
    1. `run` starts the engine and returns when cancelled, with the process gone (no orphan).
    2. `receive` waits for news and returns all that has come since, in order: one list an
       engine step. Events of a job come in order and end with one `JobEnded`, unless
       `EngineDown` comes first.
    3. `submit` and `cancel` return at once and never block on the engine. A submit while the
       engine is down is void (the `EngineDown` was or will be received).
    4. A process that dies is reported by `EngineDown` and started again with growing pauses;
       one that shows no life for the hang limit while it has jobs is killed first.
    5. `count` returns the exact number of tokens that `prompt` feeds, having checked
       `constraint` if there is one. Raises `PromptError` for a prompt that cannot be rendered,
       `ConstraintError` for a constraint the engine does not take, `EngineNotReady` when the
       engine is down or does not answer in time.
    """

    async def run(self) -> None: ...

    async def receive(self) -> Sequence[HostEvent]: ...

    def submit(self, job: HostJob) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    async def count(self, prompt: Prompt, constraint: Constraint | None = None) -> int: ...
