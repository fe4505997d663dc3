"""Owns `GET /v1/models` and `GET /v1/models/{id}`, which several public APIs have at the same path.

One body serves them all: OpenAI's members and Anthropic's stand side by side, and a page of Replicate's
beside them where `extra` gives its members. Only errors are in the form that the caller's headers ask
for: Anthropic's with `anthropic-version`, else OpenAI's. When a model was made is not known here, so
`created` is the epoch.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from edge.anthropic import errors as anthropic_errors
from edge.http.middleware import caller_of
from edge.http.wire_json import encode_json
from edge.openai import errors as openai_errors
from edge.upstream.answers import served_model
from edge.upstream.errors import UpstreamError
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord

PREFIXES = ("/v1", "/openai/v1", "/anthropic/v1", "/anthropic")
Extra = Callable[[Request, ModelRecord], Mapping[str, object]]


class ModelList:
    """The two endpoints."""

    def __init__(self, models: UpstreamModels, extra: Extra | None = None) -> None:
        """`extra` gives a model's members in one more API, whose lists are pages with `results`."""
        self._models = models
        self._extra = extra

    def routes(self) -> list[BaseRoute]:
        """Return all routes. An id may hold a slash."""
        table = (("/models", self.list), ("/models/{model_id:path}", self.get))
        return [
            Route(prefix + path, _answering(endpoint), methods=["GET"])
            for prefix in PREFIXES
            for path, endpoint in table
        ]

    async def list(self, request: Request) -> Response:
        """Return all served models, in the service's order."""
        models = await self._models.list(caller=caller_of(request))
        body: dict[str, object] = {
            "object": "list",
            "data": [model_members(model) for model in models],
            "has_more": False,
            "first_id": models[0].name if models else None,
            "last_id": models[-1].name if models else None,
        }
        if self._extra is not None:
            results = [dict(self._extra(request, model)) for model in models]
            body |= {"next": None, "previous": None, "results": results}
        return _json(body)

    async def get(self, request: Request) -> Response:
        """Return one model."""
        model = await served_model(request.path_params["model_id"], self._models, caller_of(request))
        extra = {} if self._extra is None else dict(self._extra(request, model))
        return _json(extra | model_members(model))


def model_members(model: ModelRecord) -> dict[str, object]:
    """Return a model as OpenAI and Anthropic show it."""
    owner, _, name = model.name.partition("/")
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": owner,
        "max_model_len": model.context_tokens,
        "type": "model",
        "display_name": name or owner,
        "created_at": "1970-01-01T00:00:00Z",
    }


def _answering(
    endpoint: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[ASGIApp]]:
    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except UpstreamError as error:
            if "anthropic-version" in request.headers:
                return anthropic_errors.upstream_response(error)
            return openai_errors.upstream_response(error)

    return answer


def _json(body: object) -> Response:
    return Response(encode_json(body), 200, {"cache-control": "no-store"}, "application/json")
