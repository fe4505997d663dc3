"""Owns the routes of Replicate's prediction API, with and without `/v1` before them.

Disconnect policy of all of them: detached. A create goes on when its caller goes away, whether it
waits or streams; only a cancel, a deadline or the service's run limit end a prediction.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive

from edge.http.body import BodyLimits, read_json
from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.problem_responses import problem_response
from edge.http.sse_response import FirstBytes, SseResponse, SseTiming
from edge.protocol import sse
from edge.protocol.event_ids import Cursor, parse_last_event_id
from edge.protocol.prefer import hold, parse_prefer
from edge.protocol.problems import Problem
from edge.replicate.errors import invalid_input, upstream_response
from edge.replicate.inputs import input_label, to_generation
from edge.replicate.render import Links, render_created, render_prediction
from edge.replicate.requests import PublicUrls, cancel_after, last_event_id, prediction_id, requested_model
from edge.replicate.schemas import InvalidInput, read_create
from edge.replicate.stream import START, ReplicateStream
from edge.replicate.tokens import StreamTokens
from edge.upstream.connection import Upstream
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.records import NewPrediction, PredictionRecord

STREAM_HEADERS: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"x-request-id, retry-after"),
    (b"referrer-policy", b"no-referrer"),
)
"""The URL is the credential, so any page that has it may read; but it must not leak as a referrer."""

PREFLIGHT_HEADERS: Final = {
    "access-control-allow-methods": "GET, HEAD, OPTIONS",
    "access-control-allow-headers": "accept, authorization, cache-control, content-type, last-event-id",
    "access-control-max-age": "86400",
    "allow": "GET, HEAD, OPTIONS",
}

HOLD_GRACE: Final = timedelta(milliseconds=250)
"""How much longer than the hold we wait for the service to say that it is over."""

_NO_STORE: Final = {"cache-control": "no-store"}
_GONE: Final = (Reason.PREDICTION_NOT_FOUND, Reason.CURSOR_EXPIRED)

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """What the routes need beside the service."""

    tokens: StreamTokens
    urls: PublicUrls
    body: BodyLimits
    timing: SseTiming


class ReplicateApi:
    """The endpoints over one service."""

    def __init__(self, upstream: Upstream, options: ReplicateOptions, lifecycle: Lifecycle) -> None:
        self._upstream = upstream
        self._options = options
        self._lifecycle = lifecycle

    def routes(self) -> list[BaseRoute]:
        """Return all routes."""
        table: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/predictions", self.create),
            ("POST", "/models/{owner}/{name}/predictions", self.create),
            ("GET", "/predictions/{prediction_id}", self.get),
            ("POST", "/predictions/{prediction_id}/cancel", self.cancel),
            ("GET", "/streams/{token}", self.stream),
            ("OPTIONS", "/streams/{token}", self.stream_preflight),
        )
        return [
            Route(prefix + path, _answering(endpoint), methods=[method])
            for prefix in ("/v1", "")
            for method, path, endpoint in table
        ]

    async def create(self, request: Request) -> Response:
        """Create a prediction; with `Prefer: wait` answer when it has ended or the wait is over.

        Detached: neither the end of the wait nor the caller's going away cancels anything.
        """
        began_s = anyio.current_time()
        preference = parse_prefer(request.headers.getlist("prefer"))
        deadline = cancel_after(request)
        body = read_create(await read_json(request, self._options.body))
        model = await requested_model(request, body, self._upstream.models)
        if not model.is_known:
            raise UpstreamError(Reason.ENGINE_NOT_READY, "The model is still loading.")
        links = self._links(request)
        new = NewPrediction(
            model=model.name,
            generation=to_generation(body.input, chat_template=model.chat_template),
            cancel_after=deadline,
            labels=(input_label(body.input),),
        )
        record = await self._upstream.predictions.create(new, caller=caller_of(request))
        headers = {**_NO_STORE, "location": links.get(record.id)}
        status = 201
        if preference.wait is not None and preference.wait_applied is not None:
            record = await self._held(request, record, hold(preference.wait), began_s)
            headers["preference-applied"] = preference.wait_applied
            status = 201 if record.status.is_terminal else 202
        return _json(render_created(record, links), status, headers)

    async def get(self, request: Request) -> Response:
        """Return a prediction as it stands. Detached."""
        record = await self._upstream.predictions.get(prediction_id(request), caller=caller_of(request))
        return _json(render_prediction(record, self._links(request)), 200, _NO_STORE)

    async def cancel(self, request: Request) -> Response:
        """Cancel a prediction and return it; one that has ended is returned unchanged. Detached."""
        record = await self._upstream.predictions.cancel(prediction_id(request), caller=caller_of(request))
        return _json(render_prediction(record, self._links(request)), 200, _NO_STORE)

    async def stream(self, request: Request) -> ASGIApp:
        """Stream a prediction's events as SSE, from the start or after `Last-Event-ID`. Detached.

        The token in the URL is the credential; an Authorization header is neither needed nor read.
        """
        found = self._options.tokens.find_prediction_id(request.path_params["token"])
        if found is None:
            return _with_stream_headers(problem_response(Problem("Not found", 404, "No such stream.")))
        if request.method == "HEAD":
            return _with_stream_headers(Response(None, 200))
        try:
            return await self._open(request, found)
        except UpstreamError as error:
            return _with_stream_headers(upstream_response(error))

    async def stream_preflight(self, request: Request) -> Response:
        """Answer a browser's preflight for a stream."""
        return _with_stream_headers(Response(None, 204, PREFLIGHT_HEADERS))

    async def _open(self, request: Request, found: str) -> ASGIApp:
        """Return the stream's answer. An id that is not one of ours streams from the start."""
        caller = caller_of(request)
        position = last_event_id(request)
        created_s, cursor = 0, START
        if position is not None:
            try:
                record = await self._upstream.predictions.get(found, caller=caller, omit_data=True)
            except UpstreamError as error:
                if error.reason in _GONE:
                    return self._sse(None, START)
                raise
            if record.data_removed:
                return self._sse(None, START)
            created_s = int(record.created_at.timestamp())
            cursor = parse_last_event_id(position, created_s) or START
            if cursor.sequence >= record.last_sequence and record.status.is_terminal:
                return _with_stream_headers(Response(None, 204))
            if cursor.sequence > record.last_sequence:
                cursor = START
        return self._sse(found, cursor, created_s=created_s, request=request)

    def _sse(
        self, found: str | None, cursor: Cursor, *, created_s: int = 0, request: Request | None = None
    ) -> ASGIApp:
        source = None
        if found is not None and request is not None:
            source = self._upstream.predictions.open_stream(found, cursor.sequence, caller=caller_of(request))
        return SseResponse(
            source,
            ReplicateStream(created_s, cursor),
            timing=self._options.timing,
            lifecycle=self._lifecycle,
            refuse=_refuse_stream,
            headers=STREAM_HEADERS,
            first_bytes=FirstBytes.AT_ONCE if cursor.sequence else FirstBytes.FIRST_EVENT,
        )

    async def _held(
        self, request: Request, record: PredictionRecord, span: timedelta, began_s: float
    ) -> PredictionRecord:
        """Return the prediction when it has ended or the wait is over; as it was created on any fault.

        The work has started by now, so a failure to watch it must not look like a failure to create.
        Ends early when the caller is gone or this process is about to end.
        """
        latest = record
        left_s = began_s + span.total_seconds() - anyio.current_time()
        if left_s <= 0 or record.status.is_terminal:
            return record
        async with anyio.create_task_group() as group:
            group.cancel_scope.deadline = anyio.current_time() + left_s + HOLD_GRACE.total_seconds()
            group.start_soon(_cancel_when_gone, request.receive, group.cancel_scope)
            group.start_soon(self._cancel_when_closing, group.cancel_scope)
            try:
                latest = await self._upstream.predictions.get(
                    record.id, caller=caller_of(request), wait=timedelta(seconds=left_s)
                )
            except UpstreamError:
                pass
            group.cancel_scope.cancel()
        return latest

    async def _cancel_when_closing(self, scope: anyio.CancelScope) -> None:
        await self._lifecycle.wait_closing()
        scope.cancel()

    def _links(self, request: Request) -> Links:
        return Links(self._options.urls.base(request), self._options.tokens)


def _answering(endpoint: Endpoint) -> Endpoint:
    """Return `endpoint` with the errors of this API turned into its answers."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except InvalidInput as error:
            return problem_response(invalid_input(error.faults))
        except UpstreamError as error:
            return upstream_response(error)

    return answer


def _refuse_stream(error: UpstreamError) -> ASGIApp | None:
    """Return the answer to an error before the first event; None for a prediction that is gone."""
    return None if error.reason in _GONE else _with_stream_headers(upstream_response(error))


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _json(body: bytes, status: int, headers: dict[str, str]) -> Response:
    return Response(body, status, headers, media_type="application/json")


def _with_stream_headers(response: Response) -> Response:
    if response.status_code == 200:  # a HEAD: the headers of a stream, which has no length
        response.raw_headers = list(sse.RESPONSE_HEADERS)
    response.raw_headers.extend(STREAM_HEADERS)
    return response
