"""Owns `/docs`: the table of endpoints as a page that needs no script and no other asset.

Text of the table is code's own, but escaped all the same. Backquotes become `<code>`.
"""

import base64
import hashlib
import html
import re
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel

from edge.protocol.public_url import PublicBase
from edge.replicate.endpoints import PATH_PARAMETERS, Endpoint

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2rem; text-transform: capitalize; }
code, pre { font: 0.9em ui-monospace, monospace; overflow-wrap: anywhere; }
summary { cursor: pointer; padding: 0.4rem 0; }
summary b { display: inline-block; min-width: 5.2rem; font: 600 0.85em ui-monospace, monospace; }
details { border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); }
dl { margin: 0.3rem 0 1rem 1rem; }
dt { font-weight: 600; }
dd { margin-left: 1.2rem; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_CODE: Final = re.compile(r"`([^`]*)`")

HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none';"
        " frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def reference_page(endpoints: Iterable[Endpoint], base: PublicBase) -> str:
    """Return the page for callers who reach us at `base`."""
    sections: dict[str, list[str]] = {}
    for endpoint in endpoints:
        sections.setdefault(endpoint.tag, []).append(_entry(endpoint))
    body = "".join(f"<h2>{html.escape(tag)}</h2>{''.join(items)}" for tag, items in sections.items())
    document = html.escape(base.url("/openapi.json"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Tailrace: API</title><style>{_STYLE}</style></head><body>"
        "<h1>Tailrace: Replicate's API</h1>"
        f"<p>At <code>{html.escape(base.url('/v1'))}</code>, and the same without <code>/v1</code>."
        f' As OpenAPI 3.1: <a href="{document}"><code>{document}</code></a>.'
        " Errors are problem details (RFC 9457).</p>"
        f"{body}</body></html>\n"
    )


def _entry(endpoint: Endpoint) -> str:
    terms = [(name, "path", PATH_PARAMETERS[name]) for name in re.findall(r"\{([a-z_]+)\}", endpoint.path)]
    terms += [(parameter.name, parameter.where, parameter.description) for parameter in endpoint.parameters]
    if isinstance(endpoint.body, type):
        terms += [(name, "body", text) for name, text in _fields(endpoint.body)]
    terms += [(str(answer.status), "answer", answer.description) for answer in endpoint.answers]
    listed = "".join(
        f"<dt><code>{html.escape(name)}</code> ({where})</dt><dd>{_marked(text)}</dd>"
        for name, where, text in terms
    )
    return (
        f"<details><summary><b>{endpoint.method}</b> <code>{html.escape(endpoint.path)}</code><br>"
        f"{_marked(endpoint.summary)}</summary><dl>{listed}</dl></details>"
    )


def _fields(model: type[BaseModel]) -> list[tuple[str, str]]:
    """Return a body's fields, those of a field that is an object after its name."""
    found = []
    for name, spec in model.model_fields.items():
        kind: Any = spec.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += [(f"{name}.{inner}", text) for inner, text in _fields(kind)]
        else:
            found.append((name, spec.description or ""))
    return found


def _marked(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))
