"""Owns what a route demands of its caller, judged by method and path alone. Pure.

Everything demands a token unless it is listed as open, so a route that is added later is guarded
before anybody thinks of it. A dialect with other rules gives a function of its own.
"""

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp

from edge.auth.grants import Scope
from edge.http.problem_responses import problem_response
from edge.protocol.problems import Problem

Refuse = Callable[[Problem, Mapping[str, str]], ASGIApp]
"""Makes a refusal in a dialect's own shape."""


class Rate(enum.Enum):
    """Which limit a call counts against."""

    CREATES = enum.auto()
    OTHERS = enum.auto()


@dataclass(frozen=True, slots=True)
class Demand:
    """What one route demands."""

    scope: Scope | None
    """None: nothing, it is open to everybody."""

    rate: Rate = Rate.OTHERS

    key_headers: tuple[str, ...] = ()
    """Headers beside `Authorization` that may hold the token bare, like `x-api-key`."""

    refuse: Refuse = field(default=problem_response)


OPEN: Final = Demand(None)
READ: Final = Demand(Scope.READ)
CREATE: Final = Demand(Scope.CREATE, Rate.CREATES)
CANCEL: Final = Demand(Scope.CANCEL)
ADMIN: Final = Demand(Scope.ADMIN)

Demands = Callable[[str, str], Demand]
"""Method and path to what is demanded."""

_OPEN_PATHS: Final = frozenset(("/healthz", "/readyz", "/", "/docs", "/openapi.json", "/favicon.ico"))
"""Probes, and pages that hold nothing of anybody's."""

_OPEN_BELOW: Final = re.compile(r"/(?:v1/)?streams/[^/]+|/p/[^/]+|/assets/.+")
"""Streams, whose URL is the credential; what pages are made of; and `/p/{id}`, which is the same empty
page for every id and asks the API for what it shows."""

_CANCEL: Final = re.compile(r".*/cancel")
_READS: Final = frozenset(("GET", "HEAD", "QUERY"))
_CREATES: Final = frozenset(("POST", "PUT"))


def demand_of(method: str, path: str) -> Demand:
    """Return what a request demands; `path` is without a trailing slash."""
    if method == "OPTIONS" or path in _OPEN_PATHS or _OPEN_BELOW.fullmatch(path):
        return OPEN
    if method in _READS:
        return READ
    if method == "POST" and _CANCEL.fullmatch(path):
        return CANCEL
    return CREATE if method in _CREATES else ADMIN
