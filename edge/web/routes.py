"""Owns the routes of the web pages: `/p/{id}`, the playground at `/`, and the files of both.

A page is a shell; its script asks the API for everything it shows, with the API token that its reader
gives it. So a page itself demands no token, and tells nothing to whoever has none. Without API tokens
(`is_open`) it holds the prediction for readers without scripts too, and an unknown id is a 404.

Disconnect policy of all of them: detached, they only read. A page is HTML whatever `Accept` says, as
the API is JSON whatever it says; so nothing varies by it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from string import Template
from typing import Final

from pydantic import JsonValue
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from edge.http.middleware import caller_of
from edge.http.problem_responses import problem_response, retry_headers
from edge.protocol.problems import Problem
from edge.protocol.public_url import PublicBase
from edge.upstream.connection import Upstream
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.records import ModelRecord, PredictionRecord
from edge.web.answers import asset, page
from edge.web.assets import Assets
from edge.web.plain_view import render_plain

_PREDICTION_ID: Final = re.compile(r"[a-z0-9-]{1,64}")

_TITLES: Final = {
    "playground": "Playground · Tailrace",
    "prediction": "Prediction · Tailrace",
    "not_found": "Not found · Tailrace",
}


@dataclass(frozen=True, slots=True)
class WebOptions:
    """What the pages need beside the service."""

    assets: Assets

    base_of: Callable[[Request], PublicBase]
    """Where the sender of a request reaches us."""

    input_of: Callable[[PredictionRecord], Mapping[str, JsonValue]]
    """A prediction's input, as the API shows it."""

    is_open: bool = True
    """There are no API tokens: whoever reaches us may see everything."""


class WebPages:
    """The pages over one service."""

    def __init__(self, upstream: Upstream, options: WebOptions) -> None:
        self._upstream = upstream
        self._options = options
        self._templates = {name: Template(text) for name, text in options.assets.templates.items()}

    def routes(self) -> list[BaseRoute]:
        """Return all routes."""
        return [
            Route("/", self.playground),
            Route("/playground/models.json", self.models),
            Route("/p/{prediction_id}", self.prediction),
            Route("/assets/{version}/{name}", self.asset),
            Route("/favicon.ico", self.icon),
        ]

    async def playground(self, request: Request) -> Response:
        """Return the playground."""
        return page(self._render("playground", request))

    async def models(self, request: Request) -> Response:
        """Return what the playground has to know of the served models, as JSON."""
        try:
            models = await self._upstream.models.list(caller=caller_of(request))
        except UpstreamError as error:
            outcome = error.outcome
            headers = retry_headers(
                retryable=outcome.retryable, status=outcome.http_status, retry_after=error.retry_after
            )
            return problem_response(Problem(outcome.title, outcome.http_status, error.message), headers)
        body = {"models": [_model(model) for model in models]}
        return JSONResponse(body, headers={"cache-control": "no-store"})

    async def prediction(self, request: Request) -> Response:
        """Return a prediction's page; 404 for an id that names none, as far as we may tell."""
        prediction_id = request.path_params["prediction_id"]
        if not _PREDICTION_ID.fullmatch(prediction_id):
            return self._not_found(request)
        plain = ""
        if self._options.is_open:
            try:
                record = await self._upstream.predictions.get(prediction_id, caller=caller_of(request))
                plain = render_plain(record, self._options.input_of(record))
            except UpstreamError as error:
                if error.reason is Reason.PREDICTION_NOT_FOUND:
                    return self._not_found(request)
        return page(self._render("prediction", request, prediction=escape(prediction_id), plain=plain))

    async def asset(self, request: Request) -> Response:
        """Return a file of the pages."""
        assets = self._options.assets
        found = assets.by_name.get(request.path_params["name"])
        if found is None:
            return problem_response(Problem("Not found", 404, "There is nothing at this path."))
        return asset(request, found, is_current=request.path_params["version"] == assets.version)

    async def icon(self, request: Request) -> Response:
        """Return the icon to browsers that ask for it unasked."""
        return asset(request, self._options.assets.by_name["icon.svg"], is_current=False)

    def _not_found(self, request: Request) -> Response:
        return page(self._render("not_found", request), 404)

    def _render(self, name: str, request: Request, **parts: str) -> str:
        """Return a page: its shell in the layout of all; `parts` are HTML."""
        prefix = escape(self._options.base_of(request).prefix)
        values = {
            "prefix": prefix,
            "assets": f"{prefix}/assets/{self._options.assets.version}",
            "prediction": "",
            "run": self._options.assets.templates["run"],
            **parts,
        }
        return self._templates["layout"].substitute(
            values,
            title=_TITLES[name],
            script=f"{name}.js",
            playground_current='aria-current="page"' if name == "playground" else "",
            main=self._templates[name].substitute(values),
        )


def _model(model: ModelRecord) -> dict[str, JsonValue]:
    return {
        "name": model.name,
        "state": model.state.value,
        "engine": model.engine,
        "context_tokens": model.context_tokens,
        "chat_template": model.chat_template,
    }
