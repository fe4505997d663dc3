"""Owns the routes of Anthropic's API, at `/v1` and under `/anthropic/v1`.

Disconnect policy of all of them: attached. The caller's going away cancels what it asked for, streaming
or not, while queued, in prefill and in decode alike.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from edge.anthropic.errors import RequestRefused, problem_shape, refusal, upstream_response
from edge.anthropic.messages import PING, MessageStream, whole_body
from edge.anthropic.schemas import CountBody, MessageBody, chat_input, message_generation, read_body
from edge.http.attached import AttachedAnswers
from edge.http.body import BodyLimits, read_json
from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.problem_responses import ProblemError
from edge.http.resumable import ResumableAnswers, wants_resumable
from edge.http.sse_response import SseTiming
from edge.http.wire_json import encode_json
from edge.upstream.answers import served_model
from edge.upstream.connection import Upstream
from edge.upstream.errors import UpstreamError
from edge.upstream.records import ModelRecord, NewPrediction
from edge.upstream.tools import one_call_labels, reader_of, takes_tools

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

LABELS = (("api", "anthropic.messages"),)


@dataclass(frozen=True, slots=True)
class AnthropicOptions:
    """What the routes need beside the service."""

    body: BodyLimits
    timing: SseTiming


class AnthropicApi:
    """The endpoints over one service."""

    def __init__(self, upstream: Upstream, options: AnthropicOptions, lifecycle: Lifecycle) -> None:
        self._upstream = upstream
        self._options = options
        self._answers = AttachedAnswers(upstream.predictions, options.timing, lifecycle)
        self._resumables = ResumableAnswers(upstream.predictions, options.timing, lifecycle)

    def routes(self) -> list[BaseRoute]:
        """Return all routes."""
        table: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/messages", self.messages),
            ("POST", "/messages/count_tokens", self.count_tokens),
            ("GET", "/messages/{prediction_id}/stream", self.resume),
        )
        return [
            Route(prefix + path, _answering(endpoint), methods=[method])
            for prefix in ("/v1", "/anthropic/v1", "/anthropic")
            for method, path, endpoint in table
        ]

    async def messages(self, request: Request) -> ASGIApp:
        """Answer a conversation. Attached."""
        body = read_body(MessageBody, await read_json(request, self._options.body))
        model = await self._model(request, body)
        generation = message_generation(body, chat_template=model.chat_template, tools=takes_tools(model))
        tools = body.tool_use
        reader = tools.reader(model) if tools is not None else None
        news = [NewPrediction(model.name, generation, labels=(*LABELS, *one_call_labels(tools)))]
        if body.stream:
            rendering = MessageStream(model.name, body.max_tokens, reader)
            refuse = partial(upstream_response, request_id=caller_of(request).request_id)
            if wants_resumable(request):
                return await self._resumables.begin(request, news[0], rendering, refuse, PING)
            return self._answers.stream(request, news, rendering, refuse, PING)
        whole = await self._answers.whole(request, news)
        message = whole_body(whole.accepted[0], whole.answers[0], model.name, body.max_tokens, reader)
        return _json(message, whole.headers)

    async def resume(self, request: Request) -> ASGIApp:
        """Stream a resumable message after `Last-Event-ID`. Detached."""
        record = await self._resumables.find(request, "anthropic.messages")
        limit = record.generation.stopping.max_tokens if record.generation is not None else None
        model = await served_model(record.model, self._upstream.models, caller_of(request))
        rendering = MessageStream(record.model, limit or 0, reader_of(record, model))
        refuse = partial(upstream_response, request_id=caller_of(request).request_id)
        return self._resumables.resume(request, record, rendering, refuse, PING)

    async def count_tokens(self, request: Request) -> ASGIApp:
        """Count what a message would feed to the model. Nothing is created."""
        body = read_body(CountBody, await read_json(request, self._options.body))
        model = await self._model(request, body)
        given = chat_input(body, chat_template=model.chat_template, tools=takes_tools(model))
        count = await self._upstream.models.count_tokens(model.name, given, caller=caller_of(request))
        return _json({"input_tokens": count}, {})

    async def _model(self, request: Request, body: CountBody) -> ModelRecord:
        return await served_model(body.model, self._upstream.models, caller_of(request))


def _answering(endpoint: Endpoint) -> Endpoint:
    """Return `endpoint` with the errors of this API turned into its answers."""

    async def answer(request: Request) -> ASGIApp:
        request_id = caller_of(request).request_id
        try:
            return await endpoint(request)
        except RequestRefused as error:
            return refusal(error, request_id)
        except ProblemError as error:
            return problem_shape(error.problem, error.headers, request_id)
        except UpstreamError as error:
            return upstream_response(error, request_id)

    return answer


def _json(body: object, headers: Mapping[str, str]) -> Response:
    return Response(
        encode_json(body), 200, {"cache-control": "no-store", **headers}, media_type="application/json"
    )
