"""A caller's JSON schema as text: what every engine checks of it before compiling it."""

from __future__ import annotations

import json

from service.domain.json_text import nesting
from service.ports.engine import ConstraintError

MAX_DEPTH = 64
"""Nesting of a JSON schema; deeper ones only tire the compiler."""


def checked_schema(text: str) -> str:
    """Return the schema, written anew as strict JSON.

    Raises:
        ConstraintError: it is not JSON, not a schema, or nested deeper than `MAX_DEPTH`.
    """
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ConstraintError("json_schema is not valid JSON") from None
    if not isinstance(schema, dict | bool):
        raise ConstraintError("json_schema must be an object or a boolean")
    if nesting(schema, MAX_DEPTH) > MAX_DEPTH:
        raise ConstraintError(f"json_schema is nested deeper than {MAX_DEPTH}")
    return json.dumps(schema)


def _no_constant(name: str) -> float:
    raise ValueError(name)
