"""Owns what is told to web pages of other origins: who may read answers, send and see which headers.

Specification: Fetch, "CORS protocol" (https://fetch.spec.whatwg.org/#http-cors-protocol). Never with
credentials: there are no cookies here, and a token is a header that the page itself sets. A stream may
be read by any page that has its URL, since the URL is the credential.

The answer to a preflight lists the headers that are always allowed, and of those asked for the ones
that SDKs make up (`x-stainless-…`).
"""

import re
from collections.abc import Iterable
from typing import Final

ANY: Final = "*"

ALLOWED_HEADERS: Final = (
    "accept",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "authorization",
    "cache-control",
    "cancel-after",
    "content-type",
    "idempotency-key",
    "last-event-id",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "prefer",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-api-key",
    "x-resumable",
)
EXPOSED_HEADERS: Final = (
    "idempotent-replayed",
    "location",
    "preference-applied",
    "ratelimit-remaining",
    "ratelimit-reset",
    "request-id",
    "retry-after",
    "www-authenticate",
    "x-request-id",
    "x-should-retry",
)
MAX_AGE_S: Final = 86_400
"""For browsers to remember a preflight; each has a lower limit of its own."""

_MADE_UP: Final = re.compile(r"x-stainless-[a-z0-9-]{1,40}")
_MAX_MADE_UP: Final = 32
_ORIGIN: Final = re.compile(r"https?://[a-z0-9.\[\]:-]+")
_STREAM: Final = re.compile(r"(?:/.*)?/streams/[^/]+/?")
"""Under whatever prefix the edge is served."""

HeaderLines = list[tuple[str, str]]


def parse_origin(text: str) -> str:
    """Return an origin in lower case, or `*`. Raises ValueError for anything else, like a URL."""
    lowered = text.lower()
    if lowered == ANY or _ORIGIN.fullmatch(lowered):
        return lowered
    raise ValueError("an origin looks like https://app.example or http://localhost:3000, without a path")


class CorsPolicy:
    """Which origins may read answers."""

    __slots__ = ("_origins",)

    def __init__(self, origins: Iterable[str] = ()) -> None:
        """`origins` as `parse_origin` gives them; none: pages of other origins read streams only."""
        self._origins = frozenset(origins)

    def answer_headers(self, path: str, origin: str | None) -> HeaderLines:
        """Return what is added to every answer."""
        allowed = self._allowed(path, origin)
        headers: HeaderLines = []
        if allowed is not None:
            headers.append(("access-control-allow-origin", allowed))
            headers.append(("access-control-expose-headers", ", ".join(EXPOSED_HEADERS)))
        if self._origins and ANY not in self._origins and not _STREAM.fullmatch(path):
            headers.append(("vary", "Origin"))
        return headers

    def preflight_headers(self, path: str, origin: str | None, asked: str) -> HeaderLines:
        """Return what is added to the answer to a preflight; `asked` is its list of headers."""
        if self._allowed(path, origin) is None:
            return []
        names = (name.strip().lower() for name in asked.split(","))
        made_up = [name for name in names if _MADE_UP.fullmatch(name)][:_MAX_MADE_UP]
        methods = "GET, HEAD" if _STREAM.fullmatch(path) else "GET, HEAD, POST, PUT, PATCH, DELETE, QUERY"
        return [
            ("access-control-allow-methods", methods),
            ("access-control-allow-headers", ", ".join((*ALLOWED_HEADERS, *dict.fromkeys(made_up)))),
            ("access-control-max-age", str(MAX_AGE_S)),
            ("vary", "Access-Control-Request-Headers"),
        ]

    def _allowed(self, path: str, origin: str | None) -> str | None:
        if _STREAM.fullmatch(path) or ANY in self._origins:
            return ANY
        return origin if origin is not None and origin.lower() in self._origins else None
