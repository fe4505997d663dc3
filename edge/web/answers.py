"""Owns pages and their files as HTTP answers: security headers, caching, conditional requests.

Nothing of a page comes from anywhere else, nothing in it is inline, and no other site may frame it.
So text of a model cannot act even if it were ever taken for markup.
"""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from edge.web.assets import Asset

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)

SECURITY_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_FOR_EVER: Final = "public, max-age=31536000, immutable"


def page(html: str, status: int = 200) -> Response:
    """Return a page. It is never kept: it may show a prediction."""
    headers = {**SECURITY_HEADERS, "cache-control": "no-store"}
    return Response(html, status, headers, media_type="text/html")


def asset(request: Request, found: Asset, *, is_current: bool) -> Response:
    """Return a file, or 304 to a caller that has it. `is_current`: its URL is that of this version."""
    headers = {
        **SECURITY_HEADERS,
        "cache-control": _FOR_EVER if is_current else "no-cache",
        "etag": found.etag,
    }
    if _has(request, found.etag):
        return Response(None, 304, headers)
    return Response(found.body, 200, {**headers, "content-type": found.content_type})


def _has(request: Request, etag: str) -> bool:
    """Return whether `If-None-Match` names `etag` (RFC 9110 §13.1.2: weak comparison)."""
    given = ",".join(request.headers.getlist("if-none-match"))
    tags = {tag.strip().removeprefix("W/") for tag in given.split(",")}
    return etag in tags or "*" in tags
