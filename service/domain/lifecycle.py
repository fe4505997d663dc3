"""The lifecycle of a prediction: which event may follow, and what it makes of the record.

The table below is the whole machine (design §3). `advance` is a fold step: record + entry →
record. Terminal states absorb nothing: an event after the end, a hole in the sequence or an
undefined transition raises `IllegalEvent` and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from service.domain.events import (
    NO_USAGE,
    Accepted,
    Completed,
    Entry,
    Event,
    FinishReason,
    Log,
    Output,
    Started,
    Status,
    Usage,
)
from service.domain.request import GenerationRequest

TRANSITIONS: dict[Status | None, dict[type[Event], frozenset[Status]]] = {
    None: {Accepted: frozenset({Status.STARTING})},
    Status.STARTING: {
        Started: frozenset({Status.PROCESSING}),
        Log: frozenset({Status.STARTING}),
        Completed: frozenset({Status.FAILED, Status.CANCELED}),
    },
    Status.PROCESSING: {
        Output: frozenset({Status.PROCESSING}),
        Log: frozenset({Status.PROCESSING}),
        Completed: frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELED}),
    },
    Status.SUCCEEDED: {},
    Status.FAILED: {},
    Status.CANCELED: {},
}


DATA_LABELS = "data."
"""Labels whose key starts so go with the data."""


class IllegalEvent(Exception):
    """The event cannot follow in this state."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The record of a prediction: the fold of its log, without the output itself."""

    id: str
    model: str
    request: GenerationRequest | None
    """None once the data has been removed."""
    created_at: datetime
    attached: bool = False
    """Whether the caller's going away cancels it."""
    request_id: str = ""
    """The caller's idempotency key; empty for none."""
    deadline: datetime | None = None
    labels: tuple[tuple[str, str], ...] = ()
    """What an edge wants kept with it, e.g. the dialect and the input as sent (≤ 64 KiB)."""
    status: Status = Status.STARTING
    started_at: datetime | None = None
    first_output_at: datetime | None = None
    completed_at: datetime | None = None
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    usage: Usage = NO_USAGE
    error: str = ""
    epoch: int = 0
    """Raised by each claim; an append with another epoch is refused."""
    last_sequence: int = 0
    data_removed: bool = False
    owner: str = ""
    """Whose it is; empty for nobody's. Request ids are the owner's own."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a prediction is to end; the counts come with the event."""

    status: Status
    finish_reason: FinishReason
    matched_stop: str | int | None = None
    error: str = ""


def lasting_labels(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the labels that stay when the data is removed, in their order."""
    return tuple(pair for pair in labels if not pair[0].startswith(DATA_LABELS))


def _target(current: Status | None, event: Event) -> Status:
    allowed = TRANSITIONS[current].get(type(event), frozenset())
    if isinstance(event, Completed):
        if event.status in allowed:
            return event.status
    elif allowed:
        (status,) = allowed
        return status
    state = current.value if current else "new"
    raise IllegalEvent(f"{type(event).__name__} cannot follow in state {state}")


def advance(record: Prediction, entry: Entry, at: datetime | None = None) -> Prediction:
    """Return the record after `entry`.

    `at` is when the entry is appended, used for `first_output_at` alone. Times never run
    backwards: `created_at ≤ started_at ≤ completed_at` holds even when the clock steps back.

    Raises:
        IllegalEvent: the event cannot follow, or the sequence is not the next one.
    """
    if entry.sequence != record.last_sequence + 1:
        raise IllegalEvent(f"sequence {entry.sequence} cannot follow {record.last_sequence}")
    current = record.status if record.last_sequence else None
    event = entry.event
    status = _target(current, event)
    seq = entry.sequence
    match event:
        case Accepted():
            return replace(record, status=status, last_sequence=seq)
        case Started(moment, input_tokens):
            usage = replace(record.usage, input_tokens=input_tokens)
            started = max(moment, record.created_at)
            return replace(record, status=status, started_at=started, usage=usage, last_sequence=seq)
        case Output(token_count=token_count):
            return after_outputs(record, entries=1, token_count=token_count, at=at)
        case Log():
            return replace(record, last_sequence=seq)
        case Completed():
            return replace(
                record,
                status=status,
                completed_at=max(event.at, record.first_output_at or record.started_at or record.created_at),
                finish_reason=event.finish_reason,
                matched_stop=event.matched_stop,
                usage=event.usage,
                error=event.error,
                last_sequence=seq,
            )


def after_outputs(
    record: Prediction, *, entries: int, token_count: int, at: datetime | None = None
) -> Prediction:
    """Return a processing record after so many output entries with so many tokens in all.

    The fold of a run of outputs in one step, spelled out field by field: this is done for every
    token, and `dataclasses.replace` costs three times as much.

    Raises:
        IllegalEvent: output cannot follow.
    """
    if record.status is not Status.PROCESSING:
        raise IllegalEvent(f"Output cannot follow in state {record.status.value}")
    usage = record.usage
    return Prediction(
        record.id,
        record.model,
        record.request,
        record.created_at,
        record.attached,
        record.request_id,
        record.deadline,
        record.labels,
        record.status,
        record.started_at,
        record.first_output_at or at,
        record.completed_at,
        record.finish_reason,
        record.matched_stop,
        Usage(usage.input_tokens, usage.cached_input_tokens, usage.output_tokens + token_count),
        record.error,
        record.epoch,
        record.last_sequence + entries,
        record.data_removed,
        record.owner,
    )
