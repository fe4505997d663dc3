"""A field of a request that breaks its bounds, and the check of a text's size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that breaks its bounds: its proto path and what is wrong, for people."""

    field: str
    description: str


def size(name: str, text: str, limit: int) -> list[FieldViolation]:
    """Return a violation if `text` has more than `limit` bytes."""
    if len(text) * 4 <= limit:
        return []
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        return [FieldViolation(name, f"must be at most {limit} bytes")]
    return []
