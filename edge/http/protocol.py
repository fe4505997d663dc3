"""Owns the bounds of an HTTP/1.1 connection that uvicorn has none of: time, headers, Host.

Specification: RFC 9112 (message syntax; §3.2 exactly one Host), RFC 6585 §5 (431). A subclass of
uvicorn's httptools protocol, which leans on its internals: the raw-socket tests run on each upgrade.

A connection that sent nothing when its time is over is closed silently; one that sent a part of a
request is answered 408. Once the request is in, nothing here runs, so streams are untouched.
"""

import asyncio
import http
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from edge.http.sse_response import ABORT_EXTENSION
from edge.protocol.forwarded import TrustedProxies
from edge.protocol.problems import CONTENT_TYPE, Problem, encode
from edge.protocol.public_url import InvalidHost, RequestOrigin, public_base

MAX_URL_BYTES: Final = 8 * 1024

_NO_PROXIES: Final = TrustedProxies()


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection."""

    header_deadline: timedelta = timedelta(seconds=10)
    """From the connection's or the request's first moment to the end of its headers."""

    body_deadline: timedelta = timedelta(seconds=21)
    """From the end of the headers to the end of the body; then the connection is closed. The
    application's limit for reading a body is shorter, so that a body that is read gets an answer."""

    idle: timedelta = timedelta(seconds=5)
    """Between two requests; whole seconds."""

    max_headers: int = 64
    max_header_bytes: int = 16 * 1024
    """Names and values of all header lines together."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with `ConnectionLimits`."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._in_headers = False
        self._head_bytes = 0
        self._received = False
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the clock for the first request."""
        super().connection_made(transport)
        self._arm(self._limits.header_deadline)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, watching the size of headers that are not complete yet."""
        if self._refused or self.transport.is_closing():
            return
        self._received = True
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_header_bytes + MAX_URL_BYTES:
                self._refuse(431, "The request's headers are too large.")
        elif self._timer is None and self.cycle and not self._is_answering():
            self._arm(self._limits.header_deadline)  # blank lines before a request stop uvicorn's clock

    def on_message_begin(self) -> None:
        """Start the clock for the headers of a request."""
        super().on_message_begin()
        self.scope["extensions"] = {ABORT_EXTENSION: {"abort": self.transport.abort}}
        self._in_headers = True
        self._head_bytes = 0
        self._arm(self._limits.header_deadline)

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(414, f"The request target may have {MAX_URL_BYTES} bytes at most.")

    def on_headers_complete(self) -> None:
        """Start the application, unless the headers are refused."""
        self._in_headers = False
        if self._refused or not self._take_headers():
            return
        self._arm(self._limits.body_deadline)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body, unless the request was refused."""
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock: the request is in."""
        self._disarm()
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no HTTP."""
        self._refuse(400, "The request is not valid HTTP/1.1.")

    def _take_headers(self) -> bool:
        size_bytes = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > self._limits.max_headers or size_bytes > self._limits.max_header_bytes:
            bounds = f"{self._limits.max_headers} header lines and {self._limits.max_header_bytes} bytes"
            self._refuse(431, f"A request may have {bounds} at most.")
            return False
        try:
            public_base(RequestOrigin("http", self.headers), None, _NO_PROXIES)
        except InvalidHost:
            self._refuse(400, "A request needs exactly one valid Host header.")
            return False
        return True

    def _refuse(self, status: int, detail: str) -> None:
        """Answer for the application and close; for a request it has answered itself, just close."""
        if self._refused:
            return
        self._refused = True
        self._disarm()
        self._unset_keepalive_if_required()
        if not self._is_answering():
            body = encode(Problem(http.HTTPStatus(status).phrase, status, detail))
            head = (
                f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None until the first request
        return cycle is not None and not cycle.response_complete

    def _arm(self, deadline: timedelta) -> None:
        self._disarm()
        self._timer = self.loop.call_later(deadline.total_seconds(), self._on_time_over)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time_over(self) -> None:
        self._timer = None
        if self._in_headers and self._received:
            self._refuse(408, "The request did not arrive in time.")
        else:
            self._refused = True
            self.transport.close()
