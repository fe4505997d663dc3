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
from edge.http.sse_response import SseRendering, SseTiming
from edge.http.wire_json import encode_json
from edge.openai import (
    chat_schema,
    completions_schema,
    generate,
    item_references,
    responses_schema,
    resuming,
)
from edge.openai.chat import ChatStream, chat_body
from edge.openai.chat_schema import chat_generations, read_chat
from edge.openai.completions import CompletionStream, completion_body
from edge.openai.completions_schema import completion_generations, read_completion
from edge.openai.errors import RequestRefused, problem_shape, refusal, upstream_response
from edge.openai.item_references import ItemReferences
from edge.openai.response_bodies import response_body
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import read_response, response_generation
from edge.openai.resuming import Renew
from edge.protocol import sse
from edge.upstream.answers import served_model
from edge.upstream.connection import Upstream
from edge.upstream.errors import UpstreamError
from edge.upstream.port import Choice
from edge.upstream.records import Generation, ModelRecord, NewPrediction
from edge.upstream.tools import one_call_labels, takes_tools

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

PREFIXES: Final = ("/v1", "/openai/v1")

API_LABEL: Final = "api"
"""Label that names the endpoint a prediction came through."""


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
        resumed: tuple[tuple[str, str, Renew, Mapping[str, str]], ...] = (
            ("/chat/completions", "openai.chat", resuming.chat_stream, chat_schema.NAMES),
            ("/completions", "openai.completions", resuming.completion_stream, completions_schema.NAMES),
            ("/responses", item_references.API, resuming.response_stream, responses_schema.NAMES),
        )
        tokens = self._resume("generate", resuming.token_stream, generate.NAMES)
        return [
            Route("/generate", _answering(self.generate, generate.NAMES), methods=["POST"]),
            Route("/generate/{prediction_id}/stream", tokens, methods=["GET"]),
            *(
                Route(prefix + path, _answering(endpoint, names), methods=["POST"])
                for prefix in PREFIXES
                for path, endpoint, names in table
            ),
            *(
                Route(
                    f"{prefix}{path}/{{prediction_id}}/stream",
                    self._resume(api, renew, names),
                    methods=["GET"],
                )
                for prefix in PREFIXES
                for path, api, renew, names in resumed
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
        if body.stream:
            stream = ChatStream(
                model, body.choices, include_usage=body.include_usage, logprobs=logprobs, tools=tools
            )
            labels = resuming.chat_labels(body)
            return await self._streamed(request, news, stream, chat_schema.NAMES, lambda: labels)
        whole = await self._answers.whole(request, news)
        told = chat_body(whole.accepted, whole.answers, model, logprobs=logprobs, tools=tools)
        return _json(told, whole.headers)

    async def completions(self, request: Request) -> ASGIApp:
        """Continue prompts. Attached."""
        body = read_completion(await read_json(request, self._options.body))
        model = await self._model(request, body.model)
        news = _news(model, "openai.completions", completion_generations(body))
        if body.stream:
            stream, names = CompletionStream(model, body), completions_schema.NAMES
            labels = resuming.completion_labels(body)
            return await self._streamed(request, news, stream, names, lambda: labels)
        whole = await self._answers.whole(request, news)
        return _json(completion_body(whole.accepted, whole.answers, model, body), whole.headers)

    async def responses(self, request: Request) -> ASGIApp:
        """Answer an input. Attached."""
        given = await read_json(request, self._options.body)
        body = read_response(given)
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
        news = _news(model, item_references.API, (generation,), one_call_labels(tools))
        if body.stream:
            stream, names = ResponseStream(model.name, body, reader), responses_schema.NAMES
            return await self._streamed(request, news, stream, names, lambda: resuming.response_labels(given))
        whole = await self._answers.whole(request, news)
        told = response_body(whole.accepted[0], whole.answers[0], model.name, body, reader)
        return _json(told, whole.headers)

    async def generate(self, request: Request) -> ASGIApp:
        """Stream the tokens after a prompt. Attached."""
        body = generate.read_generate(await read_json(request, self._options.body))
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
        return await self._streamed(request, news, generate.TokenStream(), generate.NAMES, tuple)

    async def _streamed(
        self,
        request: Request,
        news: Sequence[NewPrediction],
        rendering: SseRendering[Choice],
        names: Mapping[str, str],
        labels: Callable[[], resuming.Labels],
    ) -> ASGIApp:
        """Return the stream of `news`: attached, or one that can be resumed if its caller asks for that.

        `labels` are what a resumable one leaves to be rendered by again.
        """
        if not wants_resumable(request):
            return self._answers.stream(request, news, rendering, _refuse(names))
        if len(news) != 1:
            raise RequestRefused("A stream with 'X-Resumable' has one choice.", "n")
        new = replace(news[0], labels=(*news[0].labels, *labels()))
        return await self._resumables.begin(request, new, rendering, _refuse(names), sse.COMMENT)

    def _resume(self, api: str, renew: Renew, names: Mapping[str, str]) -> Endpoint:
        """Return the endpoint that goes on with resumable streams of `api`. Detached."""

        async def resume(request: Request) -> ASGIApp:
            record = await self._resumables.find(request, api)
            rendering = renew(record, await self._model(request, record.model))
            return self._resumables.resume(request, record, rendering, _refuse(names), sse.COMMENT)

        return _answering(resume, names)

    async def _model(self, request: Request, name: str) -> ModelRecord:
        return await served_model(name, self._upstream.models, caller_of(request))


def _news(
    model: ModelRecord, api: str, generations: Sequence[Generation], labels: resuming.Labels = ()
) -> list[NewPrediction]:
    kept = ((API_LABEL, api), *labels)
    return [NewPrediction(model.name, generation, labels=kept) for generation in generations]


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
