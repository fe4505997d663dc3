"""JSON that a caller gives as text inside a field: strict, of bounded nesting.

Strict: no NaN or Infinity, written out or by overflow, and no half surrogate pairs. What passes can be
written again as JSON in UTF-8.
"""

from __future__ import annotations

import json
import math

MAX_NESTING = 48
"""Values inside each other, the innermost counted. The schema around a forced tool's adds 4 levels, and
with them stays below the 64 that engines take."""


def try_object(text: str) -> dict[str, object] | None:
    """Return the JSON object that `text` is, or None if it is none or too deep."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or _too_deep(text, value) or _half_characters(text, value):
        return None
    return value


def _too_deep(text: str, value: dict[str, object]) -> bool:
    """Whether it is nested too deep; a text with few brackets cannot be."""
    return text.count("{") + text.count("[") >= MAX_NESTING and nesting(value, MAX_NESTING) > MAX_NESTING


def _half_characters(text: str, value: dict[str, object]) -> bool:
    """Whether it holds half a surrogate pair, as one can be written as an escape."""
    try:
        (json.dumps(value, ensure_ascii=False) if "\\u" in text else text).encode()
    except UnicodeEncodeError:
        return True
    return False


def nesting(value: object, limit: int) -> int:
    """Return how deep values stand inside each other, a leaf counted; `limit` + 1 if it is more."""
    depth, level = 0, [value]
    while level and depth <= limit:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def _refuse(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
