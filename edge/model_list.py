"""Owns `GET /v1/models` and `GET /v1/models/{id}`, which several public APIs have at the same path.

One body serves them all: the members of OpenAI's, Anthropic's and Replicate's stand side by side. Under
the prefixes of one API only the first two do. Errors have the form that the path and the caller's
headers ask for: Anthropic's with `anthropic-version`, OpenAI's below the prefixes, else at the shared
paths the members of OpenAI's and Replicate's side by side, as `edge.problem_shapes` has them. When a
model was made is not known here, so `created` is the epoch.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from edge.anthropic import errors as anthropic_errors
from edge.http.middleware import caller_of
from edge.http.problem_responses import ProblemError
from edge.http.wire_json import encode_json
from edge.openai import errors as openai_errors
from edge.replicate import errors as replicate_errors
from edge.replicate.catalog import model_object
from edge.replicate.listing import refuse_cursor
from edge.replicate.requests import PublicUrls, name_in_path
from edge.replicate.routing import Handler
from edge.replicate.schemas import InvalidInput
from edge.upstream.answers import served_model
from edge.upstream.errors import UpstreamError
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord

PREFIXES: Final = ("/openai/v1", "/anthropic/v1", "/anthropic")
"""Of one API alone; an id there may hold a slash."""


class ModelList:
    """The two endpoints."""

    def __init__(self, models: UpstreamModels, urls: PublicUrls) -> None:
        self._models = models
        self._urls = urls

    def routes(self) -> list[BaseRoute]:
        """Return the routes that are not Replicate's: to stand after those."""
        table: tuple[tuple[str, Handler], ...] = (
            ("/models", self._list),
            ("/models/{model_id:path}", self._get),
        )
        return [
            Route("/v1/models/{model_id}", _told_to_all(self._get_shared), methods=["GET"]),
            *(
                Route(prefix + path, _answering(endpoint), methods=["GET"])
                for prefix in PREFIXES
                for path, endpoint in table
            ),
        ]

    def replicate_handlers(self) -> dict[str, Handler]:
        """Return what serves Replicate's operations at the shared paths."""
        return {
            "models.list": _told_to_all(self._list_shared),
            "models.get": _told_to_all(self._get_of_replicate),
        }

    async def _list(self, request: Request) -> Response:
        models = await self._models.list(caller=caller_of(request))
        return _json(_page(models, [model_members(model) for model in models]))

    async def _list_shared(self, request: Request) -> Response:
        refuse_cursor(request.query_params)
        models = await self._models.list(caller=caller_of(request))
        entries = [self._shared_members(request, model) for model in models]
        return _json(_page(models, entries) | {"next": None, "previous": None, "results": entries})

    async def _get(self, request: Request) -> Response:
        return _json(model_members(await self._served(request)))

    async def _get_shared(self, request: Request) -> Response:
        return _json(self._shared_members(request, await self._served(request)))

    async def _get_of_replicate(self, request: Request) -> Response:
        model = await self._models.get(name_in_path(request), caller=caller_of(request))
        return _json(self._shared_members(request, model))

    async def _served(self, request: Request) -> ModelRecord:
        return await served_model(request.path_params["model_id"], self._models, caller_of(request))

    def _shared_members(self, request: Request, model: ModelRecord) -> dict[str, object]:
        replicates = model_object(model, self._urls.base(request)).model_dump(mode="json")
        return replicates | model_members(model)


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


def _page(models: Sequence[ModelRecord], entries: Sequence[Mapping[str, object]]) -> dict[str, object]:
    return {
        "object": "list",
        "data": entries,
        "has_more": False,
        "first_id": models[0].name if models else None,
        "last_id": models[-1].name if models else None,
    }


def _answering(endpoint: Handler) -> Handler:
    told = _anthropic_too(endpoint)

    async def answer(request: Request) -> ASGIApp:
        try:
            return await told(request)
        except UpstreamError as error:
            return openai_errors.upstream_response(error)

    return answer


def _told_to_all(endpoint: Handler) -> Handler:
    told = _anthropic_too(endpoint)

    async def answer(request: Request) -> ASGIApp:
        try:
            return await told(request)
        except InvalidInput as error:
            raise ProblemError(replicate_errors.invalid_input(error.faults)) from error
        except UpstreamError as error:
            return replicate_errors.upstream_response(error, **openai_errors.upstream_body(error))

    return answer


def _anthropic_too(endpoint: Handler) -> Handler:
    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except UpstreamError as error:
            if "anthropic-version" not in request.headers:
                raise
            return anthropic_errors.upstream_response(error, caller_of(request).request_id)

    return answer


def _json(body: object) -> Response:
    return Response(encode_json(body), 200, {"cache-control": "no-store"}, "application/json")
