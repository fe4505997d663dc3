"""Owns streams of other dialects that can be resumed: for callers that ask so with `X-Resumable: true`.

Such a stream carries SSE ids and its answer names in `Location` where it goes on: a GET there with
`Last-Event-ID`. A dropped connection must then not end it, so its prediction is detached: only its
own end, a cancel or the run limit do.

The last frame of every event carries the event's id, so frames before it come again with it if the
connection breaks in between. The first id comes with the first output, or the end: whoever has one
has all that a dialect says before.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.sse_response import FirstBytes, Refuse, SseRendering, SseResponse, SseTiming
from edge.protocol.event_ids import Cursor, format_id, parse_last_event_id
from edge.protocol.sse import encode_retry
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, PredictionEvent
from edge.upstream.port import Choice, UpstreamPredictions
from edge.upstream.records import NewPrediction, PredictionRecord

START: Final = Cursor(0)


def wants_resumable(request: Request) -> bool:
    """Return whether the caller asks for a stream that it can resume."""
    return request.headers.get("x-resumable", "").strip().lower() in ("true", "1")


class ResumableRendering(SseRendering[Choice], Protocol):
    """A rendering that can begin in the middle."""

    def go_on(self) -> None:
        """Note that the reader has everything up to some output."""
        ...


class _WithIds:
    """Adds ids to the frames of a rendering. An `SseRendering` of single events."""

    def __init__(self, inner: ResumableRendering, created_s: int) -> None:
        self._inner = inner
        self._created_s = created_s

    @property
    def ended(self) -> bool:
        return self._inner.ended

    def render(self, event: PredictionEvent) -> bytes:
        frames = self._inner.render(Choice(0, event))
        if not frames:
            return b""
        last = frames.rfind(b"\n\n", 0, -2) + 2 if b"\n\n" in frames[:-2] else 0
        return b"%sid: %s\n%s" % (
            frames[:last],
            format_id(self._created_s, event.sequence).encode(),
            frames[last:],
        )

    def render_failure(self, error: UpstreamError) -> bytes:
        return self._inner.render_failure(error)

    def render_leaving(self, pause: timedelta) -> bytes:
        return encode_retry(pause)

    def last_words(self) -> bytes:
        return self._inner.last_words()


@dataclass(frozen=True, slots=True)
class ResumableAnswers:
    """Makes such answers."""

    predictions: UpstreamPredictions
    timing: SseTiming
    lifecycle: Lifecycle

    async def begin(
        self,
        request: Request,
        new: NewPrediction,
        rendering: ResumableRendering,
        refuse: Refuse,
        keepalive: bytes,
    ) -> ASGIApp:
        """Create `new`, detached, and return the answer that streams it."""
        record = await self.predictions.create(new, caller=caller_of(request))
        name = request.scope["path"].rpartition("/")[2]  # relative, so that any public prefix fits
        location = (b"location", f"{name}/{record.id}/stream".encode())
        return self._answer(request, record, START, rendering, refuse, keepalive, location)

    async def find(self, request: Request, api: str) -> PredictionRecord:
        """Return the prediction of the path, made by `api`. Raises UpstreamError."""
        identity = request.path_params["prediction_id"]
        record = await self.predictions.get(identity, caller=caller_of(request))
        if dict(record.labels).get("api") != api:
            raise UpstreamError(Reason.PREDICTION_NOT_FOUND, "No such stream.")
        if record.data_removed:
            raise UpstreamError(Reason.CURSOR_EXPIRED, "Its data has been removed.")
        return record

    def resume(
        self,
        request: Request,
        record: PredictionRecord,
        rendering: ResumableRendering,
        refuse: Refuse,
        keepalive: bytes,
    ) -> ASGIApp:
        """Return the answer that streams `record` after `Last-Event-ID`; without one from the start."""
        created_s = int(record.created_at.timestamp())
        cursor = parse_last_event_id(request.headers.get("last-event-id"), created_s) or START
        if cursor.sequence >= record.last_sequence:
            if record.status.is_terminal:
                return Response(None, 204)
            cursor = START if cursor.sequence > record.last_sequence else cursor
        if cursor.sequence:
            rendering.render(Choice(0, Accepted(1, record.id, record.created_at)))
            rendering.go_on()
        return self._answer(request, record, cursor, rendering, refuse, keepalive)

    def _answer(
        self,
        request: Request,
        record: PredictionRecord,
        cursor: Cursor,
        rendering: ResumableRendering,
        refuse: Refuse,
        keepalive: bytes,
        *headers: tuple[bytes, bytes],
    ) -> ASGIApp:
        identity = record.id.encode()
        return SseResponse(
            self.predictions.open_stream(record.id, cursor.sequence, caller=caller_of(request)),
            _WithIds(rendering, int(record.created_at.timestamp())),
            timing=self.timing,
            lifecycle=self.lifecycle,
            refuse=refuse,
            headers=((b"x-request-id", identity), (b"request-id", identity), *headers),
            first_bytes=FirstBytes.AT_ONCE if cursor.sequence else FirstBytes.FIRST_FRAME,
            keepalive=keepalive,
        )
