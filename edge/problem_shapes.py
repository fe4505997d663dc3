"""Owns which API's error shape a path's problems take, when nothing of that API has seen the request:
an unknown path, a method that a path does not have, a fault of ours."""

import re
from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from edge.anthropic import errors as anthropic_errors
from edge.http.problem_responses import problem_response
from edge.openai import errors as openai_errors
from edge.protocol.problems import Problem

_ANTHROPIC: Final = re.compile(r"/anthropic(/|$)|/v1/messages(/|$)")
_OPENAI: Final = re.compile(r"/openai(/|$)|/v1/(chat|completions|responses)(/|$)|/generate$")


def shaped(scope: Scope, problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return the answer to `problem` in the shape of the API that the path belongs to."""
    path = scope["path"]
    if _ANTHROPIC.match(path):
        return anthropic_errors.problem_shape(problem, headers)
    if _OPENAI.match(path):
        return openai_errors.problem_shape(problem, headers)
    return problem_response(problem, headers)
