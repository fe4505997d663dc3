"""The events of a prediction's log: what they are and what each carries.

Owns the closed set of past facts that make up a prediction's append-only log (design: the event
log is the truth). It does not own their order: `lifecycle` says which may follow which.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Status(Enum):
    """Where a prediction stands. The last three are terminal and never change."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def terminal(self) -> bool:
        """Whether no further event can follow."""
        return self in _TERMINAL


_TERMINAL = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED})


class FinishReason(Enum):
    """Why generation ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string or stop token id matched."""
    LENGTH = "length"
    """`max_tokens` were generated, or the context is full."""
    CANCELED = "canceled"
    """A caller canceled, or an attached caller went away."""
    DEADLINE = "deadline"
    """The prediction's own deadline passed; the status is canceled."""
    ERROR = "error"
    """Generation failed; `error` says how."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position."""

    token: str
    data: bytes
    token_id: int | None
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural-log probability of one generated token."""

    token: str
    """Printable form; half a character shows as U+FFFD."""
    data: bytes
    """The token's exact bytes: joined over tokens they give the text."""
    token_id: int | None
    logprob: float
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. Output counts every sampled token, also one that ended or was swallowed."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0


NO_USAGE = Usage()
"""Nothing counted yet."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prediction exists. Always sequence 1."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Started:
    """An engine slot took the prediction. At most one; a continuation adds none."""

    at: datetime
    input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """Complete characters that no stop string can swallow any more."""

    text: str
    token_ids: tuple[int, ...] = ()
    """The tokens whose text this completes; empty where the engine does not know ids."""
    token_count: int = 0
    """Sampled tokens since the last output event, known by id or not."""
    logprobs: tuple[TokenLogprob, ...] = ()
    aligned: bool = True
    """Whether the ids up to here cover the text up to here. Not so when a token's first bytes are
    text already and its last ones are still held; then only the text can be continued from."""


@dataclass(frozen=True, slots=True)
class Log:
    """A line for the prediction's `logs`."""

    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The end. Exactly one, always last."""

    at: datetime
    status: Status
    finish_reason: FinishReason
    usage: Usage = NO_USAGE
    matched_stop: str | int | None = None
    error: str = ""
    """For people, at most 1 KiB; empty unless the status is failed."""


Event = Accepted | Started | Output | Log | Completed


@dataclass(frozen=True, slots=True)
class Entry:
    """One event at its place in the log; sequences are 1, 2, 3 … without a hole."""

    sequence: int
    event: Event
