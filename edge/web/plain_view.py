"""Owns what a prediction's page shows to readers without scripts: status, input, output. Pure.

Every text is escaped; long ones are cut, since the whole is one click away as JSON.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import Final

from pydantic import JsonValue

from edge.protocol.timestamps import format_timestamp
from edge.upstream.events import Status
from edge.upstream.records import PredictionRecord

MAX_TEXT_CHARS: Final = 200_000
"""Of one text on the page."""

_CUT: Final = "\n… (cut here; the JSON has all of it)"
_REMOVED: Final = "Input and output were removed after their retention."


def render_plain(record: PredictionRecord, given: Mapping[str, JsonValue]) -> str:
    """Return the prediction as HTML. `given` is its input, as the API shows it."""
    facts = [
        ("Model", record.model),
        ("Status", record.status.value),
        ("Created", format_timestamp(record.created_at)),
    ]
    if record.completed_at is not None:
        facts.append(("Completed", format_timestamp(record.completed_at)))
        facts.append(("Tokens", f"{record.usage.input_tokens} in, {record.usage.output_tokens} out"))
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    parts = [f'<dl class="facts">{rows}</dl>']
    if record.error:
        parts.append(_section("Error", record.error))
    if record.data_removed:
        parts.append(f"<p>{_REMOVED}</p>")
    else:
        parts.append(_section("output", "".join(record.output)))
        parts += [_section(name, _text(value)) for name, value in given.items()]
    if record.status in (Status.STARTING, Status.PROCESSING):
        parts.append("<p>It is not finished: load this page again to see more.</p>")
    return "".join(parts)


def _section(name: str, text: str) -> str:
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS] + _CUT
    title = name.replace("_", " ").capitalize()
    return f'<h2>{escape(title)}</h2><pre class="text">{escape(text)}</pre>'


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
