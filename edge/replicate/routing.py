"""Owns how the table of endpoints becomes routes: one a path, so that a 405 names all its methods."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from edge.http.problem_responses import problem_response
from edge.replicate.endpoints import Endpoint
from edge.replicate.errors import invalid_input, upstream_response
from edge.replicate.schemas import InvalidInput
from edge.upstream.errors import UpstreamError

PREFIXES: Final = ("/v1", "")
"""Both, so that one base URL serves clients that add `/v1` and clients that do not."""

Handler = Callable[[Request], Awaitable[ASGIApp]]


def build_routes(endpoints: Iterable[Endpoint], handlers: Mapping[str, Handler]) -> list[BaseRoute]:
    """Return the routes of `endpoints`; raises ValueError unless each has its handler, and no more.

    A handler raises InvalidInput and UpstreamError as it likes: they are answered here.
    """
    endpoints = tuple(endpoints)
    unmatched = {endpoint.operation for endpoint in endpoints} ^ handlers.keys()
    if unmatched:
        raise ValueError(f"without endpoint or handler: {', '.join(sorted(unmatched))}")
    by_path: dict[str, dict[str, Handler]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = handlers[endpoint.operation]
    return [
        Route(prefix + path, _dispatch(methods), methods=list(methods))
        for prefix in PREFIXES
        for path, methods in by_path.items()
    ]


def _dispatch(methods: Mapping[str, Handler]) -> Handler:
    async def answer(request: Request) -> ASGIApp:
        handler = methods["GET" if request.method == "HEAD" else request.method]
        try:
            return await handler(request)
        except InvalidInput as error:
            return problem_response(invalid_input(error.faults))
        except UpstreamError as error:
            return upstream_response(error)

    return answer
