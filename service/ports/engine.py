"""The engine port: what loads one model and turns jobs into token pieces.

An engine runs in a process of its own (`service.engine_worker`), never in the service's. It
decides nothing about stop strings, character boundaries or prompts' special tokens: that is
`service.domain.stop` and `prepare`. One contract suite (`tests/contract/engines`) runs over every
adapter, a test per promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from service.domain.admission import TOOLS
from service.domain.request import Constraint, Prompt, Sampling
from service.domain.stop import TokenPiece


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a loaded model is and can do."""

    engine: str
    """`llama_cpp`, `exllamav2` or `scripted`."""
    slots: int
    """Jobs that can run at the same time."""
    context_tokens: int
    """Prompt + output tokens that fit into one slot."""
    vocabulary_size: int
    chat_template: bool
    """Whether `ChatPrompt` can be rendered."""
    eos_token_ids: tuple[int, ...] = ()
    capabilities: frozenset[str] = frozenset()
    """Names of `Capability` values; a request that needs another is refused by name."""
    weights_sha256: str = ""
    """The served file's digest, empty where there is no single file."""
    attention: str = ""
    """Which attention kernels are in use, where an engine has a choice."""
    tool_format: str = ""
    """How the model writes tool calls (`tailrace.v1.Model`); empty: `ChatPrompt.tools` cannot be rendered."""

    @property
    def request_fields(self) -> frozenset[str]:
        """Return the request fields that not every model takes and this one does, by proto path."""
        return self.capabilities | {TOOLS} if self.tool_format else self.capabilities


class Capability(Enum):
    """A thing some engine cannot do; each is the request field's proto path."""

    TYPICAL_P = "sampling.typical_p"
    LOGIT_BIAS = "sampling.logit_bias"
    MIN_TOKENS = "stopping.min_tokens"
    STOP_TOKEN_IDS = "stopping.stop_token_ids"
    IGNORE_EOS = "stopping.ignore_eos"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    LOGPROBS = "logprobs"


@dataclass(frozen=True, slots=True)
class Job:
    """One generation, ready to run."""

    id: str
    """Unique among the jobs of an engine's life."""
    token_ids: tuple[int, ...]
    """The whole context to feed: prompt, and for a continuation what was already generated."""
    max_tokens: int
    """At least 1, and within the context."""
    sampling: Sampling
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    constraint: Constraint | None = None
    logprobs: int | None = None


class EndReason(Enum):
    """Why an engine stopped working on a job."""

    EOS = "eos"
    LENGTH = "length"
    CANCELED = "canceled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Progress on the prompt: `done` of `total` tokens, `cached` of them from an earlier prompt."""

    job_id: str
    done: int
    total: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Produced:
    """Some tokens came out."""

    job_id: str
    piece: TokenPiece


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over and its slot is free."""

    job_id: str
    reason: EndReason
    output_tokens: int = 0
    """Sampled tokens in all, with the one that ended it."""
    cached_tokens: int = 0
    error: str = ""
    """Log text when failed; never shown to callers as it stands."""
    invalid: bool = False
    """The job itself was at fault (bad grammar or schema), not the engine."""


EngineEvent = Prefilled | Produced | Ended
Deliver = Callable[[EngineEvent], None]


class EngineLoadError(Exception):
    """The model cannot be served; the text says what to do."""


class PromptError(Exception):
    """The prompt cannot be rendered or tokenised; the text is safe to show to the caller."""


class ConstraintError(Exception):
    """The constraint is not valid or not supported; the text is safe to show to the caller."""


class Engine(Protocol):
    """A loaded model with slots.

    Promises:
        1. `load` blocks until the model answers or raises `EngineLoadError`; it is called once,
           first. `progress` gets fractions 0..1 in rising order.
        2. `prepare` returns the exact ids that are fed: template rendered in a sandbox, exactly
           one beginning-of-sequence token where the model wants one, special tokens in the texts of
           messages and tools neutralised; for a forced tool what opens a call, for an unfinished
           last message nothing behind its content. `continuation` is appended as plain text.
           Thread-safe; does not disturb running jobs. Raises `PromptError`.
        3. `submit` returns at once. The job's events come through `deliver`, in order, from any
           one thread at a time; at most `slots` jobs run, the caller submits no more.
        4. Each submitted job gets exactly one `Ended`, last, whatever happens; after it the slot
           is free.
        5. `Produced` pieces joined are exactly the bytes of the sampled tokens, without the
           end-of-turn token's own text. Token counts are exact.
        6. `cancel` is idempotent, may come at any time from any thread (also for an unknown id),
           takes effect during the prefill of a long prompt within one prompt batch, and leaves
           other jobs' tokens as they would have been.
        7. A job that fails ends with FAILED and disturbs no other job.
        8. `close` ends what runs as CANCELED and frees the model.
        9. `check` returns for a constraint that a job can have, and raises `ConstraintError`, with
           what is wrong, for any other. Thread-safe; does not wait for running jobs.
    """

    def load(self, progress: Callable[[float], None]) -> EngineInfo: ...

    def prepare(self, prompt: Prompt, continuation: str = "") -> tuple[int, ...]: ...

    def check(self, constraint: Constraint) -> None: ...

    def submit(self, job: Job, deliver: Deliver) -> None: ...

    def cancel(self, job_id: str) -> None: ...

    def close(self) -> None: ...
