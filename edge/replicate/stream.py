"""Owns a prediction's events in Replicate's SSE form: `output`, `error`, `done`, and their ids.

Ids are positions in the log (`edge.protocol.event_ids`), so any edge can resume any stream. Text that
must be cut is cut after its first character; the part of an id therefore counts characters, and
holds however the service groups log entries into events when it is asked again.

A stream that could not be mended ends with an `error` that repeats the last id and without `done`:
the prediction has not ended, and a reader that comes back with that id misses nothing.

Events that Replicate's stream does not have, or that an official client ends a stream on, are sent
only to a reader that asks for all: `start` when an engine took the prediction, `logs`, and `tokens`,
the number of tokens sampled since the last `tokens`, with the id of the output just before it.
"""

import json
from datetime import timedelta
from typing import Final, assert_never

from edge.protocol.chunks import split_piece
from edge.protocol.event_ids import Cursor, format_id
from edge.protocol.sse import TIMEOUT_408, encode_event, encode_retry
from edge.protocol.timestamps import format_timestamp
from edge.upstream.errors import UpstreamError
from edge.upstream.events import Accepted, Completed, LogLine, OutputText, PredictionEvent, Started, Status

START: Final = Cursor(0)

_GO_ON: Final = "The prediction may still be running: read on with Last-Event-ID, or poll it."


class ReplicateStream:
    """Renders one stream, from a cursor on. An `SseRendering`."""

    __slots__ = ("_all_events", "_created_s", "_part", "_sequence", "_skip", "ended")

    def __init__(self, created_s: int, cursor: Cursor, *, all_events: bool = False) -> None:
        """`created_s`: the prediction's creation in Unix seconds; 0 when `Accepted` will tell it."""
        self._created_s = created_s
        self._all_events = all_events
        self._sequence = cursor.sequence
        self._part = cursor.part
        self._skip = cursor.part
        self.ended = False

    def render(self, event: PredictionEvent) -> bytes:
        """Return the frames of `event`."""
        match event:
            case OutputText():
                frames = self._output(event)
                if self._all_events and event.token_count:
                    frames += encode_event("tokens", self._position(), str(event.token_count))
                return frames
            case Completed():
                self.ended = True
                return self._completed(event)
            case Accepted():
                self._created_s = int(event.time.timestamp())
                self._move(event.sequence)
                return b""
            case Started():
                self._move(event.sequence)
                return encode_event("start", self._position(), _started(event)) if self._all_events else b""
            case LogLine():
                self._move(event.sequence)
                return encode_event("logs", self._position(), event.text) if self._all_events else b""
            case _:  # pragma: no cover
                assert_never(event)

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return an `error` that does not end the prediction, and so no `done`."""
        return encode_event("error", self._position(), _detail(f"{error.message} {_GO_ON}"))

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return when to come back."""
        return encode_retry(pause)

    def last_words(self) -> bytes:
        """Return what Replicate says to a reader that stays after the end."""
        return TIMEOUT_408

    def _output(self, event: OutputText) -> bytes:
        skipped = self._skip
        pieces = split_piece(event.text[skipped:] if skipped else event.text)
        self._move(event.sequence)
        if skipped > len(event.text):  # grouped otherwise than when the id was given out
            self._skip = self._part = skipped - len(event.text)
        if not pieces:
            return b""
        last = encode_event("output", format_id(self._created_s, event.sequence), pieces[-1])
        if len(pieces) == 1:
            return last
        position = format_id(self._created_s, event.first_sequence - 1, skipped + len(pieces[0]))
        return encode_event("output", position, pieces[0]) + last

    def _completed(self, event: Completed) -> bytes:
        error_sent = self._skip > 0
        self._move(event.sequence)
        last = format_id(self._created_s, event.sequence)
        if event.status is Status.CANCELED:
            return encode_event("done", last, '{"reason":"canceled"}')
        if event.status is not Status.FAILED:
            return encode_event("done", last, "{}")
        done = encode_event("done", last, '{"reason":"error"}')
        if error_sent:
            return done
        position = format_id(self._created_s, event.sequence - 1, 1)
        return encode_event("error", position, _detail(event.error)) + done

    def _position(self) -> str:
        return format_id(self._created_s, self._sequence, self._part)

    def _move(self, sequence: int) -> None:
        self._sequence = sequence
        self._part = self._skip = 0


def _detail(text: str) -> str:
    return json.dumps({"detail": text}, separators=(",", ":"))


def _started(event: Started) -> str:
    members = {"started_at": format_timestamp(event.time), "input_token_count": event.input_tokens}
    return json.dumps(members, separators=(",", ":"))
