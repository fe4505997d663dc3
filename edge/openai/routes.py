"""Owns the routes of OpenAI's API, at `/v1` and under `/openai/v1`.

Disconnect policy of all of them: attached. The caller's going away cancels what it asked for, streaming
or not, while queued, in prefill and in decode alike.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from edge.http.attached import AttachedAnswers
from edge.http.body import BodyLimits, read_json
from edge.http.lifecycle import Lifecycle
from edge.http.middleware import caller_of
from edge.http.problem_responses import ProblemError
from edge.http.resumable import ResumableAnswers, wants_resumable
from edge.http.sse_response import SseTiming
from edge.http.wire_json import encode_json
from edge.openai import chat_schema, completions_schema, generate, item_references, responses_schema
from edge.openai.chat import ChatStream, chat_body
from edge.openai.chat_schema import ChatBody, chat_generations, read_chat
from edge.openai.completions import CompletionStream, completion_body
from edge.openai.completions_schema import completion_generations, read_completion
from edge.openai.errors import RequestRefused, problem_shape, refusal, upstream_response
from edge.openai.item_references import ItemReferences
from edge.openai.response_bodies import response_body
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import read_response, response_generation
from edge.protocol import sse
from edge.upstream.answers import served_model
from edge.upstream.connection import Upstream
from edge.upstream.errors import UpstreamError
from edge.upstream.records import Generation, ModelRecord, NewPrediction
from edge.upstream.tools import takes_tools

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

API_LABEL: Final = "api"
"""Label that names the endpoint a prediction came through."""

USAGE_LABEL: Final = "openai.include_usage"
"""Label of a resumable stream: whether it ends with its usage."""


@dataclass(frozen=True, slots=True)
class OpenAiOptions:
    """What the routes need beside the service."""

    body: BodyLimits
    timing: SseTiming
    default_max_tokens: int
    """Of a chat or response that names no limit."""


class OpenAiApi:
    """The endpoints over one service."""

    def __init__(self, upstream: Upstream, options: OpenAiOptions, lifecycle: Lifecycle) -> None:
        self._upstream = upstream
        self._options = options
        self._answers = AttachedAnswers(upstream.predictions, options.timing, lifecycle)
        self._resumables = ResumableAnswers(upstream.predictions, options.timing, lifecycle)
        self._references = ItemReferences(upstream.predictions, upstream.models)

    def routes(self) -> list[BaseRoute]:
        """Return all routes."""
        table: tuple[tuple[str, Endpoint, Mapping[str, str]], ...] = (
            ("/chat/completions", self.chat, chat_schema.NAMES),
            ("/completions", self.completions, completions_schema.NAMES),
            ("/responses", self.responses, responses_schema.NAMES),
        )
        resume = _answering(self.resume_chat, chat_schema.NAMES)
        return [
            Route("/v1/chat/completions/{prediction_id}/stream", resume, methods=["GET"]),
            Route("/openai/v1/chat/completions/{prediction_id}/stream", resume, methods=["GET"]),
            Route("/generate", _answering(self.generate, generate.NAMES), methods=["POST"]),
            *(
                Route(prefix + path, _answering(endpoint, names), methods=["POST"])
                for prefix in ("/v1", "/openai/v1")
                for path, endpoint, names in table
            ),
        ]

    async def chat(self, request: Request) -> ASGIApp:
        """Answer a conversation. Attached."""
        body = read_chat(await read_json(request, self._options.body))
        model = await self._model(request, body.model)
        news = _news(
            model,
            "openai.chat",
            chat_generations(
                body,
                chat_template=model.chat_template,
                default_tokens=self._options.default_max_tokens,
                tools=takes_tools(model),
            ),
        )
        logprobs, tools = bool(body.logprobs), body.tool_use
        if body.stream and wants_resumable(request):
            if tools is not None:
                raise RequestRefused("A stream with tools cannot be resumed.", "X-Resumable")
            return await self._begin_resumable(request, model, body, news)
        if body.stream:
            stream = ChatStream(
                model, body.choices, include_usage=body.include_usage, logprobs=logprobs, tools=tools
            )
            return self._answers.stream(request, news, stream, _refuse(chat_schema.NAMES))
        whole = await self._answers.whole(request, news)
        told = chat_body(whole.accepted, whole.answers, model, logprobs=logprobs, tools=tools)
        return _json(told, whole.headers)

    async def _begin_resumable(
        self, request: Request, model: ModelRecord, body: ChatBody, news: Sequence[NewPrediction]
    ) -> ASGIApp:
        if body.choices != 1:
            raise RequestRefused("A stream with 'X-Resumable' has one choice.", "n")
        new = replace(news[0], labels=(*news[0].labels, (USAGE_LABEL, str(body.include_usage))))
        stream = ChatStream(model, 1, include_usage=body.include_usage, logprobs=bool(body.logprobs))
        return await self._resumables.begin(request, new, stream, _refuse(chat_schema.NAMES), sse.COMMENT)

    async def resume_chat(self, request: Request) -> ASGIApp:
        """Stream a resumable chat completion after `Last-Event-ID`. Detached."""
        record = await self._resumables.find(request, "openai.chat")
        model = await self._model(request, record.model)
        generation = record.generation
        stream = ChatStream(
            model,
            1,
            include_usage=dict(record.labels).get(USAGE_LABEL) == str(True),
            logprobs=generation is not None and generation.top_logprobs is not None,
        )
        return self._resumables.resume(request, record, stream, _refuse(chat_schema.NAMES), sse.COMMENT)

    async def completions(self, request: Request) -> ASGIApp:
        """Continue prompts. Attached."""
        body = read_completion(await read_json(request, self._options.body))
        model = await self._model(request, body.model)
        news = _news(model, "openai.completions", completion_generations(body))
        if body.stream:
            _refuse_resumable(request)
            refuse = _refuse(completions_schema.NAMES)
            return self._answers.stream(request, news, CompletionStream(model, body), refuse)
        whole = await self._answers.whole(request, news)
        return _json(completion_body(whole.accepted, whole.answers, model, body), whole.headers)

    async def responses(self, request: Request) -> ASGIApp:
        """Answer an input. Attached."""
        body = read_response(await read_json(request, self._options.body))
        body = await self._references.resolved(body, caller_of(request))
        model = await self._model(request, body.model)
        generation = response_generation(
            body,
            chat_template=model.chat_template,
            default_tokens=self._options.default_max_tokens,
            tools=takes_tools(model),
        )
        tools = body.tool_use
        reader = tools.reader(model) if tools is not None else None
        news = _news(model, item_references.API, (generation,))
        if tools is not None and not tools.is_parallel:
            labels = (*news[0].labels, (item_references.ONE_CALL_LABEL, "1"))
            news = [replace(news[0], labels=labels)]
        if body.stream:
            _refuse_resumable(request)
            refuse = _refuse(responses_schema.NAMES)
            return self._answers.stream(request, news, ResponseStream(model.name, body, reader), refuse)
        whole = await self._answers.whole(request, news)
        told = response_body(whole.accepted[0], whole.answers[0], model.name, body, reader)
        return _json(told, whole.headers)

    async def generate(self, request: Request) -> ASGIApp:
        """Stream the tokens after a prompt. Attached."""
        body = generate.read_generate(await read_json(request, self._options.body))
        _refuse_resumable(request)
        name = body.model
        if name is None:
            served = await self._upstream.models.list(caller=caller_of(request))
            if len(served) != 1:
                raise RequestRefused("'model' is needed where several are served.", "model")
            name = served[0].name
        model = await self._model(request, name)
        generation = generate.generation_of(
            body, chat_template=model.chat_template, default_tokens=self._options.default_max_tokens
        )
        news = _news(model, "generate", (generation,))
        return self._answers.stream(request, news, generate.TokenStream(), _refuse(generate.NAMES))

    async def _model(self, request: Request, name: str) -> ModelRecord:
        return await served_model(name, self._upstream.models, caller_of(request))


def _news(model: ModelRecord, api: str, generations: Sequence[Generation]) -> list[NewPrediction]:
    labels = ((API_LABEL, api),)
    return [NewPrediction(model.name, generation, labels=labels) for generation in generations]


def _refuse_resumable(request: Request) -> None:
    if wants_resumable(request):
        raise RequestRefused("Only chat completions and messages can be resumed.", "X-Resumable")


def _refuse(names: Mapping[str, str]) -> Callable[[UpstreamError], ASGIApp]:
    return lambda error: upstream_response(error, names)


def _answering(endpoint: Endpoint, names: Mapping[str, str]) -> Endpoint:
    """Return `endpoint` with the errors of this API turned into its answers."""

    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except RequestRefused as error:
            return refusal(error)
        except ProblemError as error:
            return problem_shape(error.problem, error.headers)
        except UpstreamError as error:
            return upstream_response(error, names)

    return answer


def _json(body: object, headers: Mapping[str, str]) -> Response:
    return Response(
        encode_json(body), 200, {"cache-control": "no-store", **headers}, media_type="application/json"
    )
