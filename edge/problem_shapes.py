"""Owns which API's error shape a path's problems take, when nothing of that API has seen the request:
an unknown path, a method that a path does not have, a token that is missing, a fault of ours.

The paths of models are several APIs': their problems are Anthropic's for callers that say
`anthropic-version`. All others get one body with the members of both other APIs side by side, since
nothing in such a request tells OpenAI's clients from Replicate's: `title`, `detail` and `status` of
RFC 9457, and OpenAI's `error`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.anthropic import errors as anthropic_errors
from edge.auth.demands import Demand, demand_of
from edge.http.problem_responses import problem_response
from edge.openai import errors as openai_errors
from edge.protocol.problems import Problem

API_KEY_HEADER: Final = "x-api-key"

_ANTHROPIC: Final = re.compile(r"/anthropic(/|$)|/v1/messages(/|$)")
_OPENAI: Final = re.compile(r"/openai(/|$)|/v1/(chat|completions|responses)(/|$)|/generate$")
_SHARED: Final = re.compile(r"/v1/models(/|$)")
"""With all below it, as an id may hold slashes."""


def shaped(scope: Scope, problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return the answer to `problem` in the shape of the API that the path belongs to."""
    path = scope["path"]
    if _ANTHROPIC.match(path) or (_SHARED.match(path) and "anthropic-version" in Headers(scope=scope)):
        return anthropic_errors.problem_shape(problem, headers)
    if _OPENAI.match(path):
        return openai_errors.problem_shape(problem, headers)
    if _SHARED.match(path):
        return problem_response(problem, headers, **openai_errors.problem_body(problem))
    return problem_response(problem, headers)


def demand_of_any(method: str, path: str) -> Demand:
    """Return what a request demands, refused in its API's shape; Anthropic's clients send `x-api-key`."""
    demand = demand_of(method, path)
    if _ANTHROPIC.match(path) or _SHARED.match(path):
        return replace(demand, key_headers=(API_KEY_HEADER,), refuse=_refuse)
    if _OPENAI.match(path):
        return replace(demand, refuse=_refuse)
    return demand


def _refuse(problem: Problem, headers: Mapping[str, str]) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await shaped(scope, problem, headers)(scope, receive, send)

    return answer
