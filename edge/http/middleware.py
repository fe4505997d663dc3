"""Owns what surrounds every request: its id, its one access line, and the boundary for errors.

An answer that carries a prediction's output names it by its `x-request-id` itself.

Pure ASGI, one layer: it looks at `http.response.start` only, so it holds nothing back and costs a
function call a chunk. It also serves paths with a trailing slash as those without, since a redirect
would lose headers and, behind a TLS proxy, name the wrong scheme; and paths with the prefix of the
public base or the server's `root_path` as those without, so that it does not matter whether a proxy
strips it. All layers below see paths of routes only.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.http.problem_responses import ProblemError, problem_response
from edge.protocol.problems import Problem
from edge.upstream.metadata import Caller
from protos.metadata import TRACEPARENT

Logger = structlog.typing.FilteringBoundLogger

INTERNAL_PROBLEM: Final = Problem("Internal error", 500, "An internal error happened.")
_STREAM_TOKEN: Final = re.compile(r"(/streams/).*")
_NOTED: Final = ("token_id", "prediction_id")
"""What layers below note in the request's state for its access line."""
_CLIENT_GONE: Final = 499


ProblemShape = Callable[[Scope, Problem, Mapping[str, str]], ASGIApp]


def caller_of(connection: HTTPConnection) -> Caller:
    """Return whom calls to the service are made for, as the middleware noted it."""
    caller = connection.scope["state"]["caller"]
    assert isinstance(caller, Caller)
    return caller


def redact_path(path: str) -> str:
    """Return `path` fit for a log: nothing of a stream's token is left, however it was mangled."""
    return _STREAM_TOKEN.sub(r"\1-", path)


class RequestBoundary:
    """The outermost layer of the application."""

    def __init__(
        self, app: ASGIApp, log: Logger, *, prefix: str = "", shape: ProblemShape | None = None
    ) -> None:
        """`prefix` is that of the public base: a proxy may pass it on or strip it.

        `shape` makes the answer to a problem in the form of the API that the path belongs to.
        """
        self._app = app
        self._log = log
        self._prefix = prefix
        self._shape = shape or _as_problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        traceparent = HTTPConnection(scope).headers.get(TRACEPARENT, "")
        scope.setdefault("state", {})["caller"] = Caller(request_id, traceparent)
        scope["path"] = _served_path(scope["path"], scope.get("root_path", ""), self._prefix)
        began_s = time.perf_counter()
        status = 0
        prediction_id = ""

        async def send_noting_status(message: Message) -> None:
            nonlocal status, prediction_id
            if message["type"] == "http.response.start":
                status = message["status"]
                told = dict(message["headers"]).get(b"x-request-id")
                if told is None:
                    message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                else:
                    prediction_id = told.decode()
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        except ClientDisconnect:
            pass
        except ProblemError as error:
            if status:
                raise
            await self._shape(scope, error.problem, error.headers)(scope, receive, send_noting_status)
        except Exception:  # the boundary: nothing unknown may reach a caller as text
            self._log.exception("http_request_failed", request_id=request_id)
            if status:
                raise
            headers = {"x-should-retry": "false", "connection": "close"}
            await self._shape(scope, INTERNAL_PROBLEM, headers)(scope, receive, send_noting_status)
        finally:
            self._log.info(
                "http_request",
                request_id=request_id,
                **({"prediction_id": prediction_id} if prediction_id else {}),
                method=scope["method"],
                path=redact_path(scope["path"]),
                status=status or _CLIENT_GONE,
                **{name: scope["state"][name] for name in _NOTED if name in scope["state"]},
                duration_ms=round((time.perf_counter() - began_s) * 1000, 1),
            )


def _as_problem(scope: Scope, problem: Problem, headers: Mapping[str, str]) -> ASGIApp:
    return problem_response(problem, headers)


def _served_path(path: str, *prefixes: str) -> str:
    """Return the path of the route that `path` means: without any of the prefixes, and trailing slash."""
    for prefix in prefixes:
        if prefix and (path == prefix or path.startswith(prefix + "/")):
            path = path[len(prefix) :] or "/"
            break
    return path[:-1] if len(path) > 1 and path.endswith("/") else path
