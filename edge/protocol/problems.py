"""Owns the body of an error answer: problem details as a value, and its JSON form.

Specification: RFC 9457 §3. The official Replicate clients read `type`, `title`, `detail`, `status`,
`instance` and `invalid_fields`. Which error becomes which problem is not decided here.

Deliberate differences: members that are None are left out instead of written as null, and text of
any kind and length can be given: lone surrogates are replaced and long text is cut, because a
`detail` often repeats what a caller sent.
"""

import json
import re
from dataclasses import dataclass
from typing import Final

from edge.protocol.scalar_values import replace_surrogates

CONTENT_TYPE: Final = "application/problem+json"
"""Media type of an encoded problem (RFC 9457 §3)."""

MAX_DETAIL_BYTES: Final = 1024
"""Longest `detail` and field description, in UTF-8: enough for people, cheap to repeat."""

MAX_LABEL_BYTES: Final = 256
"""Longest value of any other text member, in UTF-8."""

MAX_INVALID_FIELDS: Final = 32
"""Most invalid fields named in one answer; a caller who fixes those sees the rest."""

_ELLIPSIS: Final = "…"
_OWN_MEMBERS: Final = frozenset(("type", "title", "status", "detail", "instance", "invalid_fields"))
_MEMBER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,63}")  # RFC 9457 §3.2


@dataclass(frozen=True, slots=True)
class InvalidField:
    """One thing that is wrong with a request body."""

    type: str
    """Kind of fault in a word: `required`, `enum`, `number_lte`, …"""

    field: str
    """Where: the dotted path of the field."""

    description: str
    """What is wrong, for people."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error answer. Raises ValueError for a status or an extra that cannot be sent."""

    title: str
    """What kind of problem, the same for each of its kind."""

    status: int
    """HTTP status, 400 … 599."""

    detail: str
    """What happened this time, for people."""

    type: str | None = None
    """URI of the kind; None means `about:blank` and is left out."""

    instance: str | None = None
    """URI of this occurrence."""

    invalid_fields: tuple[InvalidField, ...] = ()
    """What is wrong with the body, in the order found."""

    extras: tuple[tuple[str, str | int | bool], ...] = ()
    """Further members, like `("retry_after", 3)` in seconds; none may have a name used above."""

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError("a problem's status must be 400 … 599")
        for name, _ in self.extras:
            if name in _OWN_MEMBERS or not _MEMBER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be an extra member of a problem")


def encode(problem: Problem, /, **further: object) -> bytes:
    """Return `problem` as a JSON object in pure ASCII; all else is escaped.

    `further` members are JSON values for readers of another API, in text without lone surrogates.
    """
    members: dict[str, object] = {
        "title": _cut(problem.title, MAX_LABEL_BYTES),
        "detail": _cut(problem.detail, MAX_DETAIL_BYTES),
        "status": problem.status,
    }
    if problem.type is not None:
        members["type"] = _cut(problem.type, MAX_LABEL_BYTES)
    if problem.instance is not None:
        members["instance"] = _cut(problem.instance, MAX_LABEL_BYTES)
    if problem.invalid_fields:
        members["invalid_fields"] = [
            {
                "type": _cut(fault.type, MAX_LABEL_BYTES),
                "field": _cut(fault.field, MAX_LABEL_BYTES),
                "description": _cut(fault.description, MAX_DETAIL_BYTES),
            }
            for fault in problem.invalid_fields[:MAX_INVALID_FIELDS]
        ]
    for name, value in problem.extras:
        members[name] = _cut(value, MAX_LABEL_BYTES) if isinstance(value, str) else value
    return json.dumps(members | further, separators=(",", ":")).encode("ascii")


def _cut(text: str, limit_bytes: int) -> str:
    """Return `text` without lone surrogates and no longer than the limit, marked where cut."""
    encoded = replace_surrogates(text[: limit_bytes + 1]).encode()
    if len(encoded) <= limit_bytes:
        return encoded.decode()
    kept = encoded[: limit_bytes - len(_ELLIPSIS.encode())]
    return kept.decode("utf-8", "ignore") + _ELLIPSIS
