"""Owns streams of other dialects that can be resumed: for callers that ask so with `X-Resumable: true`.

Such a stream carries SSE ids and its answer names in `Location` where it goes on: a GET there with
`Last-Event-ID`. A dropped connection must then not end it, so its prediction is detached: only its
own end, a cancel or the run limit do.

Every frame has an id. A resumed stream is rendered from its beginning, log entry by log entry, and what
the reader has is left out: a rendering may keep any state, and a cut between two frames of one event
neither repeats nor loses one.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.sse_response import FirstBytes, Refuse, SseRendering, SseResponse, SseTiming
from edge.protocol.event_ids import Cursor, cursor_after, format_id, parse_last_event_id
from edge.protocol.sse import encode_retry
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import PredictionEvent
from edge.upstream.port import Choice, UpstreamPredictions
from edge.upstream.records import NewPrediction, PredictionRecord

START: Final = Cursor(0)
RESUMABLE_LABEL: Final = "resumable"
"""Label of a prediction whose stream was asked for so."""


def wants_resumable(request: Request) -> bool:
    """Return whether the caller asks for a stream that it can resume."""
    return request.headers.get("x-resumable", "").strip().lower() in ("true", "1")


class _WithIds:
    """Adds ids to the frames of a rendering, and leaves out those up to a place. An `SseRendering`."""

    def __init__(self, inner: SseRendering[Choice], created_s: int, after: Cursor) -> None:
        self._inner = inner
        self._created_s = created_s
        self._after = after

    @property
    def ended(self) -> bool:
        return self._inner.ended

    def render(self, event: PredictionEvent) -> bytes:
        frames = self._inner.render(Choice(0, event)).split(b"\n\n")[:-1]
        shown = []
        for part, frame in enumerate(frames, 1):
            at = cursor_after(event.sequence, part, len(frames))
            if at > self._after:
                place = format_id(self._created_s, at.sequence, at.part)
                shown.append(b"id: %s\n%s\n\n" % (place.encode(), frame))
        return b"".join(shown)

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
        rendering: SseRendering[Choice],
        refuse: Refuse,
        keepalive: bytes,
    ) -> ASGIApp:
        """Create `new`, detached, and return the answer that streams it."""
        kept = replace(new, labels=(*new.labels, (RESUMABLE_LABEL, "1")))
        record = await self.predictions.create(kept, caller=caller_of(request))
        name = request.scope["path"].rpartition("/")[2]  # relative, so that any public prefix fits
        location = (b"location", f"{name}/{record.id}/stream".encode())
        return self._answer(request, record, START, rendering, refuse, keepalive, location)

    async def find(self, request: Request, api: str) -> PredictionRecord:
        """Return the prediction of the path, if `api` made it to be resumed. Raises UpstreamError."""
        identity = request.path_params["prediction_id"]
        record = await self.predictions.get(identity, caller=caller_of(request))
        labels = dict(record.labels)
        if labels.get("api") != api or RESUMABLE_LABEL not in labels:
            raise UpstreamError(Reason.PREDICTION_NOT_FOUND, "No such stream.")
        if record.data_removed:
            raise UpstreamError(Reason.CURSOR_EXPIRED, "Its data has been removed.")
        return record

    def resume(
        self,
        request: Request,
        record: PredictionRecord,
        rendering: SseRendering[Choice],
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
        return self._answer(request, record, cursor, rendering, refuse, keepalive)

    def _answer(
        self,
        request: Request,
        record: PredictionRecord,
        cursor: Cursor,
        rendering: SseRendering[Choice],
        refuse: Refuse,
        keepalive: bytes,
        *headers: tuple[bytes, bytes],
    ) -> ASGIApp:
        identity = record.id.encode()
        return SseResponse(
            self.predictions.open_stream(record.id, 0, caller=caller_of(request), unjoined=True),
            _WithIds(rendering, int(record.created_at.timestamp()), cursor),
            timing=self.timing,
            lifecycle=self.lifecycle,
            refuse=refuse,
            headers=((b"x-request-id", identity), (b"request-id", identity), *headers),
            first_bytes=FirstBytes.FIRST_FRAME if cursor == START else FirstBytes.AT_ONCE,
            keepalive=keepalive,
        )
