"""Owns the way in: who the caller is, what it may do, how much of it. Pure ASGI, before routing.

With a file of tokens every route that is not open demands one: 401 without, 403 for a missing scope,
429 above a limit. Nothing of the body is read for these answers, and what was refused is not
counted. Without such a file everybody is nobody's owner, and only what is meant for this machine is
let in (`web_callers`).

An open route is never asked on behalf of everybody: its caller owns nothing and sees nothing, unless
the route itself says that its URL is the credential.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.auth import grants
from edge.auth.demands import Demand, Demands, demand_of
from edge.auth.grants import Grant
from edge.auth.token_bucket import Verdict
from edge.auth.token_file import GrantFile
from edge.auth.token_format import parse_token
from edge.auth.usage import DefaultLimits, TokenUsage, UsageTable
from edge.auth.web_callers import WebCallers
from edge.protocol.problems import Problem
from edge.upstream.metadata import Caller

NOBODY: Final = "(nobody)"
"""Owner of nothing: no token can have this owner."""

UNAUTHENTICATED: Final = Problem("Unauthenticated", 401, "You did not pass a valid authentication token")
"""Word for word as Replicate's."""

_SCHEMES: Final = ("bearer", "token")


class Gate:
    """The ASGI layer."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: GrantFile | None,
        web: WebCallers,
        limits: DefaultLimits,
        *,
        demands: Demands = demand_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens` of None asks for none."""
        self._app = app
        self._tokens = tokens
        self._web = web
        self._demands = demands
        self._usage = UsageTable(limits, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        demand = self._demands(scope["method"], scope["path"])
        if self._tokens is None:
            answer = self._judge_web_caller(scope, demand)
        elif demand.scope is None:
            _act_as(scope, owner=NOBODY, sees_all=False)
            answer = self._app
        else:
            answer = await self._judge_token(scope, demand, demand.scope, self._tokens)
        await answer(scope, receive, send)

    def _judge_web_caller(self, scope: Scope, demand: Demand) -> ASGIApp:
        headers = Headers(scope=scope)
        if not self._web.admits_host(headers.get("host", "")):
            detail = "This server answers to local names only, or to those of EDGE_ALLOWED_HOSTS."
            return demand.refuse(Problem("Host not allowed", 403, detail), {})
        origin = headers.get("origin")
        if origin is not None and demand.scope is not None and not self._web.admits_origin(origin):
            detail = "Pages of this origin may not use this server; see EDGE_CORS_ORIGINS."
            return demand.refuse(Problem("Origin not allowed", 403, detail), {})
        return self._app

    async def _judge_token(
        self, scope: Scope, demand: Demand, wanted: grants.Scope, tokens: GrantFile
    ) -> ASGIApp:
        text = presented_token(Headers(scope=scope), demand.key_headers)
        token = None if text is None else parse_token(text)
        grant = None if token is None else await tokens.find(token, datetime.now(UTC))
        if grant is None:
            return demand.refuse(UNAUTHENTICATED, {"www-authenticate": _challenge(text)})
        scope["state"]["token_id"] = grant.id
        if not grant.has(wanted):
            problem = Problem("Forbidden", 403, f"This token lacks the scope {wanted.value}.")
            return demand.refuse(problem, {})
        return self._judge_usage(scope, demand, grant)

    def _judge_usage(self, scope: Scope, demand: Demand, grant: Grant) -> ASGIApp:
        usage = self._usage.of(grant)
        if usage.open >= usage.concurrency:
            detail = f"Request was throttled. At most {usage.concurrency} may be open at a time."
            return demand.refuse(_throttled(detail, 1), {"retry-after": "1"})
        verdict = self._usage.take(grant, demand.rate)
        headers = {"ratelimit-remaining": str(verdict.remaining), "ratelimit-reset": str(verdict.reset_s)}
        if not verdict.is_allowed:
            unit = "second" if verdict.retry_after_s == 1 else "seconds"
            detail = f"Request was throttled. Expected available in {verdict.retry_after_s} {unit}."
            headers["retry-after"] = str(verdict.retry_after_s)
            return demand.refuse(_throttled(detail, verdict.retry_after_s), headers)
        _act_as(scope, owner=grant.owner, sees_all=grant.has(grants.Scope.ADMIN))
        return _Counted(self._app, usage, verdict)


class _Counted:
    """The application behind the gate, with one request noted as open and its limits told."""

    def __init__(self, app: ASGIApp, usage: TokenUsage, verdict: Verdict) -> None:
        self._app = app
        self._usage = usage
        self._headers = (
            (b"ratelimit-remaining", str(verdict.remaining).encode()),
            (b"ratelimit-reset", str(verdict.reset_s).encode()),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers]
            await send(message)

        self._usage.open += 1
        try:
            await self._app(scope, receive, send_with_limits)
        finally:
            self._usage.open -= 1


def presented_token(headers: Headers, key_headers: tuple[str, ...] = ()) -> str | None:
    """Return the text given as token, None for none: `Authorization: Bearer …` or `Token …`.

    `key_headers` hold it bare and count where there is no `Authorization`. Two of one header are none:
    something between may have read the other one.
    """
    values = headers.getlist("authorization")
    if values:
        scheme, _, text = values[0].strip().partition(" ")
        if len(values) > 1 or scheme.lower() not in _SCHEMES:
            return None
        return text.strip() or None
    for name in key_headers:
        values = headers.getlist(name)
        if len(values) == 1 and values[0].strip():
            return values[0].strip()
    return None


def _act_as(scope: Scope, *, owner: str, sees_all: bool) -> None:
    caller = scope["state"]["caller"]
    assert isinstance(caller, Caller), "the request boundary stands before the gate"
    scope["state"]["caller"] = replace(caller, owner=owner, sees_all=sees_all)


def _challenge(presented: str | None) -> str:
    """Return WWW-Authenticate (RFC 6750 §3): no error code where nothing was presented."""
    return 'Bearer realm="tailrace"' + ("" if presented is None else ', error="invalid_token"')


def _throttled(detail: str, retry_after_s: int) -> Problem:
    return Problem("Too many requests", 429, detail, extras=(("retry_after", retry_after_s),))
