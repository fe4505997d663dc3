"""Owns the application: which dialects and probes are served, built from settings and one service.

A factory: nothing exists before it is called, and two applications in one process share nothing.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from edge.anthropic.routes import AnthropicApi, AnthropicOptions
from edge.auth.gate import Gate
from edge.auth.token_file import GrantFile
from edge.auth.usage import DefaultLimits
from edge.auth.web_callers import WebCallers
from edge.http.body import BodyLimits
from edge.http.cors import CorsHeaders
from edge.http.lifecycle import Lifecycle
from edge.http.middleware import Logger, RequestBoundary
from edge.http.problem_responses import problem_response
from edge.http.sse_response import SseTiming
from edge.model_list import ModelList
from edge.openai.routes import OpenAiApi, OpenAiOptions
from edge.problem_shapes import demand_of_any, shaped
from edge.protocol.cors import CorsPolicy
from edge.protocol.problems import Problem
from edge.replicate.endpoints import ENDPOINTS
from edge.replicate.inputs import echo_input
from edge.replicate.openapi import openapi_document
from edge.replicate.reference_page import HEADERS as REFERENCE_HEADERS
from edge.replicate.reference_page import reference_page
from edge.replicate.requests import PublicUrls
from edge.replicate.routes import ReplicateApi, ReplicateOptions
from edge.replicate.tokens import StreamTokens
from edge.settings import Settings
from edge.upstream.connection import Upstream
from edge.upstream.port import UpstreamHealth
from edge.web.assets import load_assets
from edge.web.routes import WebOptions, WebPages


@dataclass(frozen=True, slots=True)
class Probes:
    """Liveness and readiness."""

    health: UpstreamHealth
    lifecycle: Lifecycle

    async def healthz(self, request: Request) -> Response:
        """Answer that the process is alive. It asks nobody."""
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    async def readyz(self, request: Request) -> Response:
        """Answer whether new traffic should come here: not when draining or without the service."""
        if self.lifecycle.is_draining:
            return problem_response(Problem("Not ready", 503, "This edge is stopping."))
        if not await self.health.is_serving():
            return problem_response(Problem("Not ready", 503, "The generation service is not serving."))
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})


@dataclass(frozen=True, slots=True)
class References:
    """The API's description, for programs and for people."""

    urls: PublicUrls

    async def openapi(self, request: Request) -> Response:
        """Answer with the OpenAPI document."""
        document = openapi_document(ENDPOINTS, self.urls.base(request))
        return Response(orjson.dumps(document), 200, {"cache-control": "no-store"}, "application/json")

    async def docs(self, request: Request) -> Response:
        """Answer with the page that lists the endpoints."""
        return HTMLResponse(reference_page(ENDPOINTS, self.urls.base(request)), 200, REFERENCE_HEADERS)


def create_app(
    settings: Settings, upstream: Upstream, lifecycle: Lifecycle, secret: bytes, log: Logger
) -> ASGIApp:
    """Return the application that serves `upstream`. Raises GrantsError for a bad file of tokens."""
    base = settings.public_base()
    urls = PublicUrls(base, settings.proxies())
    body = BodyLimits(settings.body_max_bytes, settings.body_deadline)
    timing = SseTiming(
        keepalive=settings.keepalive,
        send_deadline=settings.send_deadline,
        hold_after_end=settings.hold_after_done,
        closing_spread=settings.drain_spread,
    )
    models = ModelList(upstream.models, urls)
    replicate = ReplicateApi(
        upstream,
        ReplicateOptions(
            tokens=StreamTokens(secret),
            urls=urls,
            body=body,
            timing=timing,
            deployments=settings.deployments,
        ),
        lifecycle,
    )
    # No reader can resume these, so at shutdown they may go on while there is time.
    grace = max(timedelta(0), settings.drain_deadline - settings.drain_spread - timedelta(seconds=1))
    attached = replace(timing, hold_after_end=timedelta(0), closing_grace=grace)
    openai = OpenAiApi(upstream, OpenAiOptions(body, attached, settings.default_max_tokens), lifecycle)
    anthropic = AnthropicApi(upstream, AnthropicOptions(body, attached), lifecycle)
    web = WebOptions(load_assets(), urls.base, echo_input, is_open=not settings.tokens_file)
    pages = WebPages(upstream, web)
    probes = Probes(upstream.health, lifecycle)
    references = References(urls)
    app = _Application(
        routes=[
            Route("/healthz", probes.healthz),
            Route("/readyz", probes.readyz),
            Route("/openapi.json", references.openapi),
            Route("/docs", references.docs),
            *openai.routes(),
            *anthropic.routes(),
            *replicate.routes(models.replicate_handlers()),
            *models.routes(),
            *pages.routes(),
        ],
        exception_handlers={HTTPException: _http_problem},
    )
    app.router.redirect_slashes = False
    gate = Gate(
        app,
        GrantFile(Path(settings.tokens_file), log) if settings.tokens_file else None,
        WebCallers(settings.admitted_hosts(), settings.cors_origins),
        DefaultLimits(
            settings.token_creates_per_minute,
            settings.token_requests_per_minute,
            settings.token_concurrency,
        ),
        demands=demand_of_any,
    )
    boundary = RequestBoundary(gate, log, prefix="" if base is None else base.prefix, shape=shaped)
    return CorsHeaders(boundary, CorsPolicy(settings.cors_origins))


class _Application(Starlette):
    """Starlette without its own outermost layer, which would answer a fault before ours sees it."""

    def build_middleware_stack(self) -> ASGIApp:
        """Return the router with the handlers for routing's own refusals."""
        return ExceptionMiddleware(self.router, handlers=self.exception_handlers)


async def _http_problem(request: Request, error: Exception) -> Response:
    """Answer for routing: an unknown path, a method that a path does not have, and OPTIONS."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and request.method == "OPTIONS":
        return Response(None, 204, {"allow": f"{(error.headers or {}).get('Allow', '')}, OPTIONS"})
    if error.status_code == 404:
        return shaped(request.scope, Problem("Not found", 404, "There is nothing at this path."), {})
    if error.status_code == 405:
        problem = Problem("Method not allowed", 405, "This path has no such method.")
        return shaped(request.scope, problem, error.headers or {})
    problem = Problem("Request refused", error.status_code, error.detail)
    return shaped(request.scope, problem, error.headers or {})
