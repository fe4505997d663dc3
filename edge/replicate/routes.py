"""Owns the routes of Replicate's prediction API, with and without `/v1` before them.

Disconnect policy of all of them: detached. A create goes on when its caller goes away, whether it
waits or streams; only a cancel, a deadline or the service's run limit end a prediction.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import anyio
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
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
from edge.replicate.catalog_routes import CatalogApi, find_deployment
from edge.replicate.deployments import Deployment, Deployments, deployment_label
from edge.replicate.endpoints import ENDPOINTS
from edge.replicate.errors import upstream_response
from edge.replicate.inputs import input_label, to_generation
from edge.replicate.listing import PAGE_SIZE, invalid_cursor, read_list_query, render_page
from edge.replicate.render import (
    Links,
    render_created,
    render_deliveries,
    render_prediction,
    webhook_context,
)
from edge.replicate.requests import (
    PublicUrls,
    cancel_after,
    chosen_id,
    last_event_id,
    new_prediction_id,
    prediction_id,
    request_id,
    requested_model,
)
from edge.replicate.routing import Handler, build_routes
from edge.replicate.schemas import CreateBody, read_create
from edge.replicate.stream import START, ReplicateStream
from edge.replicate.tokens import StreamTokens
from edge.upstream.connection import Upstream
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.records import (
    NewPrediction,
    PredictionPage,
    PredictionRecord,
    Webhook,
    WebhookEvent,
)

STREAM_HEADERS: Final = ((b"referrer-policy", b"no-referrer"),)
"""The URL is the credential; it must not leak as a referrer."""

HOLD_GRACE: Final = timedelta(milliseconds=250)
"""How much longer than the hold we wait for the service to say that it is over."""

_NO_STORE: Final = {"cache-control": "no-store"}
_GONE: Final = (Reason.PREDICTION_NOT_FOUND, Reason.CURSOR_EXPIRED)


@dataclass(frozen=True, slots=True)
class ReplicateOptions:
    """What the routes need beside the service."""

    tokens: StreamTokens
    urls: PublicUrls
    body: BodyLimits
    timing: SseTiming
    deployments: Deployments = field(default_factory=dict)


class ReplicateApi:
    """The endpoints over one service."""

    def __init__(self, upstream: Upstream, options: ReplicateOptions, lifecycle: Lifecycle) -> None:
        self._upstream = upstream
        self._options = options
        self._catalog = CatalogApi(upstream.models, options.deployments, options.urls, options.body)
        self._lifecycle = lifecycle

    def routes(self, shared: Mapping[str, Handler]) -> list[BaseRoute]:
        """Return all routes; `shared` serves the operations whose paths other APIs have too."""
        return build_routes(ENDPOINTS, {**self.handlers(), **shared})

    def handlers(self) -> dict[str, Handler]:
        """Return what serves each operation of the table that is Replicate's alone."""
        return {
            "predictions.create": self.create,
            "predictions.put": self.create,
            "predictions.list": self.list,
            "predictions.get": self.get,
            "predictions.cancel": self.cancel,
            "predictions.stream": self.stream,
            "models.predictions.create": self.create,
            "deployments.predictions.create": self.create_on_deployment,
            "predictions.webhook_deliveries": self.webhook_deliveries,
            "webhooks.default.secret.get": self.webhook_secret,
            **self._catalog.handlers(),
        }

    async def create(self, request: Request) -> Response:
        """Create a prediction; with `Prefer: wait` answer when it has ended or the wait is over.

        A repeat, by `Idempotency-Key` or by a PUT of the same id, creates nothing and is answered 200
        where the first was 201. Detached: neither the end of the wait nor the caller's going away
        cancels anything.
        """
        return await self._create(request)

    async def create_on_deployment(self, request: Request) -> Response:
        """Create a prediction with a deployment's defaults and limits, else as `create`. Detached."""
        return await self._create(request, *find_deployment(request, self._options.deployments))

    async def _create(
        self, request: Request, name: str = "", deployment: Deployment | None = None
    ) -> Response:
        began_s = anyio.current_time()
        preference = parse_prefer(request.headers.getlist("prefer"))
        deadline = cancel_after(request)
        request_name = request_id(request)
        given = await read_json(request, self._options.body)
        body = read_create(given if deployment is None else deployment.fill(given))
        wanted_id = chosen_id(request, body)
        if deployment is None:
            model = await requested_model(request, body, self._upstream.models)
        else:
            deployment.check(body.input)
            model = await self._upstream.models.get(deployment.model, caller=caller_of(request))
        if not model.is_known:
            raise UpstreamError(Reason.ENGINE_NOT_READY, "The model is still loading.")
        links = self._links(request)
        new = NewPrediction(
            model=model.name,
            generation=to_generation(body.input, chat_template=model.chat_template),
            cancel_after=deadline,
            labels=(input_label(body.input), *deployment_label(name)),
            request_id=request_name,
            prediction_id=wanted_id,
        )
        new = _with_webhook(new, body, links)
        record = await self._upstream.predictions.create(new, caller=caller_of(request))
        headers = {**_NO_STORE, "location": links.get(record.id)}
        status = 201
        if record.replayed:
            status = 200
            headers["idempotent-replayed"] = "true"
        if preference.wait is not None and preference.wait_applied is not None:
            record = await self._held(request, record, hold(preference.wait), began_s)
            headers["preference-applied"] = preference.wait_applied
            status = status if record.status.is_terminal else 202
        return _json(render_created(record, links), status, headers)

    async def list(self, request: Request) -> Response:
        """Return a page of predictions, the newest first. Detached.

        None is of source `web`: a page of ours creates them as any caller does.
        """
        query = read_list_query(request.query_params)
        page = PredictionPage((), "")
        if query.source != "web":
            try:
                page = await self._upstream.predictions.list(
                    caller=caller_of(request),
                    page_size=PAGE_SIZE,
                    page_token=query.cursor,
                    created_after=query.after_exclusive,
                    created_before=query.created_before,
                )
            except UpstreamError as error:
                if query.cursor and error.reason is Reason.INVALID_REQUEST:
                    raise invalid_cursor() from None
                raise
        return _json(render_page(page, self._links(request), query), 200, _NO_STORE)

    async def get(self, request: Request) -> Response:
        """Return a prediction as it stands. Detached."""
        record = await self._upstream.predictions.get(prediction_id(request), caller=caller_of(request))
        return _json(render_prediction(record, self._links(request)), 200, _NO_STORE)

    async def cancel(self, request: Request) -> Response:
        """Cancel a prediction and return it; one that has ended is returned unchanged. Detached."""
        record = await self._upstream.predictions.cancel(prediction_id(request), caller=caller_of(request))
        return _json(render_prediction(record, self._links(request)), 200, _NO_STORE)

    async def webhook_deliveries(self, request: Request) -> Response:
        """List the calls of a prediction's webhook. Detached."""
        found, caller = prediction_id(request), caller_of(request)
        await self._upstream.predictions.get(found, caller=caller, omit_data=True)  # 404 if it is not theirs
        calls = await self._upstream.webhooks.deliveries(found, caller=caller)
        return _json(render_deliveries(calls), 200, _NO_STORE)

    async def webhook_secret(self, request: Request) -> Response:
        """Return the secret that webhooks are verified with. Detached."""
        key = await self._upstream.webhooks.secret(caller=caller_of(request))
        return _json(orjson.dumps({"key": key}), 200, _NO_STORE)

    async def stream(self, request: Request) -> ASGIApp:
        """Stream a prediction's events as SSE, from the start or after `Last-Event-ID`. Detached.

        The token in the URL is the credential; an Authorization header is neither needed nor read.
        `?events=all` adds the events that only readers who ask for them may get.
        """
        found = self._options.tokens.find_prediction_id(request.path_params["token"])
        if found is None:
            return _with_stream_headers(problem_response(Problem("Not found", 404, "No such stream.")))
        request.state.prediction_id = found
        request.state.caller = caller_of(request).for_everybody()
        if request.method == "HEAD":
            return _with_stream_headers(Response(None, 200))
        try:
            return await self._open(request, found)
        except UpstreamError as error:
            return _with_stream_headers(upstream_response(error))

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
        all_events = request is not None and request.query_params.get("events") == "all"
        if found is not None and request is not None:
            source = self._upstream.predictions.open_stream(found, cursor.sequence, caller=caller_of(request))
        return SseResponse(
            source,
            ReplicateStream(created_s, cursor, all_events=all_events),
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


def _with_webhook(new: NewPrediction, body: CreateBody, links: Links) -> NewPrediction:
    """Return `new` with the webhook that `body` asks for.

    A fresh id is then ours: the URLs in the calls' bodies are made from it, the stream's with our
    secret.
    """
    url = body.webhook or body.webhook_completed
    if url is None:
        return new
    fresh_id = "" if new.prediction_id else new_prediction_id()
    webhook = Webhook(url, tuple(WebhookEvent(name) for name in body.events()))
    context = webhook_context(new.prediction_id or fresh_id, webhook, links)
    return replace(new, fresh_id=fresh_id, webhook=replace(webhook, context=context))


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
