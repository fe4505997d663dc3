"""Owns what a prediction's event stream tells, free of gRPC: the values that every dialect renders.

The meaning of each event is that of `protos/tailrace/v1/prediction.proto`. Whether a prediction has
an RPC of its own is not visible here, nor anywhere outside `edge.upstream`.
"""

import enum
from dataclasses import dataclass
from datetime import datetime


class Status(enum.Enum):
    """Where a prediction stands; the value is its public spelling."""

    STARTING = "starting"
    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """Whether it never changes again."""
        return self not in (Status.STARTING, Status.PROCESSING)


class FinishReason(enum.Enum):
    """Why generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELED = "canceled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    input_tokens: int = 0
    """Tokens fed, with the template's."""

    cached_input_tokens: int = 0
    """Of these, taken from a cache."""

    output_tokens: int = 0
    """Tokens sampled."""


@dataclass(frozen=True, slots=True)
class MatchedStop:
    """What ended the text: exactly one of the two is set."""

    text: str | None = None
    """The stop string, as it was given."""

    token_id: int | None = None
    """The stop token id."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prediction exists; always the first event."""

    sequence: int
    """Its log entry: 1."""

    prediction_id: str
    """What to stream or cancel by."""

    time: datetime
    """created_at of the prediction."""


@dataclass(frozen=True, slots=True)
class Started:
    """An engine slot took the prediction."""

    sequence: int
    """Its log entry."""

    time: datetime
    """When."""

    input_tokens: int
    """Tokens fed."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a place of the output."""

    token: str
    """Printable form; half a character shows as U+FFFD."""

    data: bytes
    """The token's exact bytes."""

    logprob: float
    """Natural logarithm, at most 0."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The probability of one token of the output."""

    token: str
    """Printable form; half a character shows as U+FFFD."""

    data: bytes
    """The token's exact bytes; joined over all tokens they are the text."""

    logprob: float
    """Natural logarithm, at most 0."""

    top: tuple[TopLogprob, ...] = ()
    """As many as asked, the most likely first."""


@dataclass(frozen=True, slots=True)
class OutputText:
    """Some output: whole characters, of one log entry or several in a row."""

    first_sequence: int
    """First log entry in it."""

    sequence: int
    """Last log entry in it: what to resume after."""

    text: str
    """May be empty."""

    token_count: int
    """Tokens sampled since the event before."""

    token_ids: tuple[int, ...] = ()
    """The tokens whose text this completes; empty where the engine does not know ids."""

    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token, only when asked for."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line for the prediction's logs."""

    sequence: int
    """Its last log entry."""

    text: str
    """Without line feed at its end."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The end; always the last event."""

    sequence: int
    """Its log entry, the last one."""

    time: datetime
    """When."""

    status: Status
    """A terminal one."""

    finish_reason: FinishReason
    """Why."""

    matched_stop: MatchedStop | None
    """Set when a stop string or stop token id ended the text."""

    usage: Usage
    """Final counts."""

    error: str
    """For people; empty unless failed."""


PredictionEvent = Accepted | Started | OutputText | LogLine | Completed
