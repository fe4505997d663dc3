"""Owns the CORS headers of every answer, errors included. Pure ASGI, the outermost layer.

Which headers is `edge.protocol.cors`; the answer to a preflight itself is routing's 204 for OPTIONS.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.protocol.cors import CorsPolicy


class CorsHeaders:
    """The ASGI layer."""

    def __init__(self, app: ASGIApp, policy: CorsPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path, origin = scope["path"], headers.get("origin")
        lines = self._policy.answer_headers(path, origin)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            asked = headers.get("access-control-request-headers", "")
            lines += self._policy.preflight_headers(path, origin, asked)
        if not lines:
            await self._app(scope, receive, send)
            return
        added = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *added]
            await send(message)

        await self._app(scope, receive, send_with_cors)
