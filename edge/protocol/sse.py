"""Owns server-sent events: frames to send, and a parser for frames received.

Specification: WHATWG HTML, "Server-sent events". What the events mean, and which id they carry,
belongs to the dialects and to `event_ids`.

What the encoder promises beyond the specification, because real readers need it:
- LF ends every line; some readers never find the blank line when CRLF is used;
- every data line is written `data: ` + text, since readers strip exactly one space;
- keep-alives and `retry` are lines without a blank line, so that no reader sees an empty event.

Known limits:
- line ends inside data arrive as LF (the format cannot carry CR); a CR that ends one event and an
  LF that starts the next arrive as two line ends, since each event is encoded on its own;
- readers that split lines at every Unicode line end (U+2028, U+0085, VT, …) lose what follows such
  a character; plain text data keeps it, as the specification wants.

Deliberate differences of the parser: lines and events have a size limit, and a long `retry` is read
as `MAX_RETRY`.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from edge.protocol.scalar_values import replace_surrogates

COMMENT: Final = b":\n"
"""Keep-alive: a comment line without a blank line, which some readers take as an empty event."""

TIMEOUT_408: Final = b":408: 408 Request Timeout\n\n"
"""Last words before closing a stream that will never say anything more."""

RESPONSE_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of every SSE response, as ASGI wants them: no caching, rewriting or proxy buffering."""

MAX_LINE_BYTES: Final = 1024 * 1024
"""Default limit for one line: the largest frame we would send is far below."""

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""Default limit for the data lines of one event: the gRPC message limit behind them."""

MAX_RETRY: Final = timedelta(days=1)
"""Longest reconnection time the parser reports."""

_MAX_RETRY_DIGITS: Final = 9
_BOM: Final = b"\xef\xbb\xbf"


class SseLimitExceeded(ValueError):
    """A received line or event is larger than the parser accepts; the stream cannot go on."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event as a reader sees it."""

    event: str
    """Event type; `message` when the stream named none."""

    data: str
    """Data lines joined by LF."""

    id: str
    """Last event id when the event was dispatched; empty when there has been none."""


def encode_event(event: str | None, event_id: str | None, data: str) -> bytes:
    """Return the frame of one event, in UTF-8; None leaves the `event` or `id` line out.

    CRLF, CR and LF in `data` each start a new data line; lone surrogates become U+FFFD. Raises
    ValueError when `event` is empty, or `event` or `event_id` holds CR, LF or NUL.
    """
    if "\n" in data or "\r" in data:
        data = data.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\ndata: ")
    if event and event_id is not None and event.isprintable() and event_id.isprintable():
        frame = f"event: {event}\nid: {event_id}\ndata: {data}\n\n"
    else:
        frame = f"{_line('event', event)}{_line('id', event_id)}data: {data}\n\n"
    try:
        return frame.encode()
    except UnicodeEncodeError:
        return replace_surrogates(frame).encode()


def encode_retry(delay: timedelta) -> bytes:
    """Return a `retry` line, in whole milliseconds, to be sent just before a frame.

    It has no blank line of its own: an event without data makes some readers forget the last id.
    Raises ValueError when `delay` is negative.
    """
    if delay < timedelta(0):
        raise ValueError("retry delay must not be negative")
    return b"retry: %d\n" % (delay // timedelta(milliseconds=1))


def _line(field: str, value: str | None) -> str:
    if value is None:
        return ""
    if "\n" in value or "\r" in value or "\0" in value:
        raise ValueError(f"an SSE {field} must not contain CR, LF or NUL")
    if field == "event" and not value:
        raise ValueError("an SSE event name must not be empty")
    return f"{field}: {value}\n"


class SseParser:
    """Turn received bytes, split anywhere, into events. Not for use by several threads at once.

    An event that is not complete when the stream ends is never reported, as the specification says.
    """

    __slots__ = (
        "_data",
        "_data_bytes",
        "_event",
        "_id_buffer",
        "_max_event_bytes",
        "_max_line_bytes",
        "_pending",
        "_skip_lf",
        "_start",
        "last_comment",
        "last_event_id",
        "retry",
    )

    def __init__(
        self, *, max_line_bytes: int = MAX_LINE_BYTES, max_event_bytes: int = MAX_EVENT_BYTES
    ) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._skip_lf = False
        self._start = True
        self._event = ""
        self._data: list[str] = []
        self._data_bytes = 0
        self._id_buffer = ""
        self.last_event_id = ""
        """Id to send as `Last-Event-ID` on reconnecting: of the newest complete event, since one
        that was cut off after its id line must be sent again. Empty when there is none."""
        self.last_comment: str | None = None
        """Text after the colon of the newest comment line; None when there has been none."""
        self.retry: timedelta | None = None
        """Newest reconnection time the stream asked for; None when it asked for none."""

    def feed(self, received: bytes) -> list[SseEvent]:
        """Return the events that `received` completes.

        Raises SseLimitExceeded when a line or an event is too large, whether complete or not;
        events of the same call are lost then, and the parser must not be used again.
        """
        if self._skip_lf and received:
            received = received.removeprefix(b"\n")
            self._skip_lf = False
        if not received:
            return []
        self._skip_lf = received.endswith(b"\r")
        lines = received.splitlines()  # for bytes: CR, LF and CRLF only
        rest = b"" if received.endswith((b"\r", b"\n")) else lines.pop()
        events = []
        for line in lines:
            if self._pending:
                line = bytes(self._pending) + line
                self._pending.clear()
            if (event := self._take_line(line)) is not None:
                events.append(event)
        self._pending += rest
        self._check_line(len(self._pending))
        return events

    def _take_line(self, line: bytes) -> SseEvent | None:
        self._check_line(len(line))
        if self._start:
            self._start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        if not name:
            self.last_comment = value
            return None
        self._take_field(name, value.removeprefix(" "), len(line))
        return None

    def _take_field(self, name: str, value: str, line_bytes: int) -> None:
        match name:
            case "data":
                self._data_bytes += line_bytes
                if self._data_bytes > self._max_event_bytes:
                    raise SseLimitExceeded(f"SSE event exceeds {self._max_event_bytes} bytes")
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id_buffer = value
            case "retry" if value.isascii() and value.isdigit():
                digits = value.lstrip("0") or "0"
                asked_ms = int(digits) if len(digits) <= _MAX_RETRY_DIGITS else 10**9
                self.retry = min(timedelta(milliseconds=asked_ms), MAX_RETRY)
            case _:
                pass  # WHATWG: any other field is ignored

    def _dispatch(self) -> SseEvent | None:
        event, data = self._event, self._data
        self._event, self._data, self._data_bytes = "", [], 0
        self.last_event_id = self._id_buffer
        if not data:
            return None
        return SseEvent(event or "message", "\n".join(data), self.last_event_id)

    def _check_line(self, line_bytes: int) -> None:
        if line_bytes > self._max_line_bytes:
            raise SseLimitExceeded(f"SSE line exceeds {self._max_line_bytes} bytes")
