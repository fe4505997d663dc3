"""The stored form of events and records: MessagePack arrays, and integers for times.

Owns what is inside the payload columns but requests (`sqlite_request_codec`). Structures are arrays
in field order; older rows can be read as long as new fields are added last and with a default. Any
other change needs a schema migration. Text is valid Unicode: a lone surrogate raises
UnicodeEncodeError (a ValueError), as it is a bug upstream of the store. Times are microseconds
since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_never

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from service.domain.events import (
    Accepted,
    Completed,
    Entry,
    Event,
    FinishReason,
    Log,
    Output,
    Started,
    Status,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from service.domain.webhook import Webhook, WebhookEvent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def from_us(moment_us: int) -> datetime:
    """Return the UTC time of so many microseconds since 1970."""
    return _EPOCH + moment_us * _MICROSECOND


def to_us_or_none(moment: datetime | None) -> int | None:
    """Return `to_us`, or None for None."""
    return None if moment is None else to_us(moment)


def from_us_or_none(moment_us: int | None) -> datetime | None:
    """Return `from_us`, or None for None."""
    return None if moment_us is None else from_us(moment_us)


class _Top(Struct, array_like=True, frozen=True, gc=False):
    token: str
    data: bytes
    token_id: int | None
    logprob: float


class _Logprob(Struct, array_like=True, frozen=True, gc=False):
    token: str
    data: bytes
    token_id: int | None
    logprob: float
    top: tuple[_Top, ...] = ()


class _Accepted(Struct, array_like=True, frozen=True, gc=False, tag=1):
    at_us: int


class _Started(Struct, array_like=True, frozen=True, gc=False, tag=2):
    at_us: int
    input_tokens: int


class _Output(Struct, array_like=True, frozen=True, gc=False, tag=3):
    text: str
    token_ids: tuple[int, ...] = ()
    token_count: int = 0
    logprobs: tuple[_Logprob, ...] = ()
    aligned: bool = True


class _Log(Struct, array_like=True, frozen=True, gc=False, tag=4):
    text: str


class _Completed(Struct, array_like=True, frozen=True, gc=False, tag=5):
    at_us: int
    status: Status
    finish_reason: FinishReason
    usage: Usage
    matched_stop: str | int | None
    error: str


class Outcome(Struct, array_like=True, frozen=True, gc=False):
    """What a fold changes in a record and no query asks for."""

    started_us: int | None
    first_output_us: int | None
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    error: str = ""


class _Webhook(Struct, array_like=True, frozen=True, gc=False):
    url: str
    events: tuple[WebhookEvent, ...] = ()


_StoredEvent = _Accepted | _Started | _Output | _Log | _Completed
_encode = Encoder().encode
_decode_events = Decoder(list[_StoredEvent]).decode
_decode_outcome = Decoder(Outcome).decode
_decode_webhook = Decoder(_Webhook).decode
_decode_labels = Decoder(tuple[tuple[str, str], ...]).decode


def encode_event(event: Event) -> bytes:
    """Return one event's payload."""
    match event:
        case Output():
            logprobs = tuple([_to_logprob(item) for item in event.logprobs]) if event.logprobs else ()
            return _encode(_Output(event.text, event.token_ids, event.token_count, logprobs, event.aligned))
        case Log():
            return _encode(_Log(event.text))
        case Accepted():
            return _encode(_Accepted(to_us(event.at)))
        case Started():
            return _encode(_Started(to_us(event.at), event.input_tokens))
        case Completed():
            at_us, usage, error = to_us(event.at), event.usage, event.error
            row = _Completed(at_us, event.status, event.finish_reason, usage, event.matched_stop, error)
            return _encode(row)
        case _:
            assert_never(event)


def decode_entries(rows: Sequence[tuple[int, bytes]]) -> tuple[Entry, ...]:
    """Return the entries of (sequence, payload) rows."""
    array32 = b"\xdd" + len(rows).to_bytes(4, "big")
    events = _decode_events(array32 + b"".join([payload for _, payload in rows]))
    return tuple([Entry(row[0], _to_event(event)) for row, event in zip(rows, events, strict=True)])


def encode_labels(labels: tuple[tuple[str, str], ...]) -> bytes:
    """Return the payload of a record's labels."""
    return _encode(labels)


def decode_labels(payload: bytes) -> tuple[tuple[str, str], ...]:
    """Return the labels of a payload."""
    return _decode_labels(payload)


def encode_webhook(webhook: Webhook) -> bytes:
    """Return the payload of a webhook, without its context."""
    return _encode(_Webhook(webhook.url, webhook.events))


def decode_webhook(payload: bytes, context: str) -> Webhook:
    """Return the webhook of a payload."""
    row = _decode_webhook(payload)
    return Webhook(row.url, row.events, context)


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the payload of a record's outcome."""
    return _encode(outcome)


def decode_outcome(payload: bytes) -> Outcome:
    """Return the outcome of a payload."""
    return _decode_outcome(payload)


def _to_event(row: _StoredEvent) -> Event:
    match row:
        case _Output():
            logprobs = tuple([_from_logprob(item) for item in row.logprobs]) if row.logprobs else ()
            return Output(row.text, row.token_ids, row.token_count, logprobs, row.aligned)
        case _Log():
            return Log(row.text)
        case _Accepted():
            return Accepted(from_us(row.at_us))
        case _Started():
            return Started(from_us(row.at_us), row.input_tokens)
        case _Completed():
            at, usage, error = from_us(row.at_us), row.usage, row.error
            return Completed(at, row.status, row.finish_reason, usage, row.matched_stop, error)
        case _:
            assert_never(row)


def _to_logprob(item: TokenLogprob) -> _Logprob:
    top = tuple([_Top(t.token, t.data, t.token_id, t.logprob) for t in item.top])
    return _Logprob(item.token, item.data, item.token_id, item.logprob, top)


def _from_logprob(row: _Logprob) -> TokenLogprob:
    top = tuple([TopLogprob(t.token, t.data, t.token_id, t.logprob) for t in row.top])
    return TokenLogprob(row.token, row.data, row.token_id, row.logprob, top)
