"""Owns the syntax shared by list-valued header fields: elements, parameters, quoted strings.

Specification: RFC 9110 §5.6 (lists, tokens, quoted strings, parameters), as RFC 7240 §2 (Prefer)
and RFC 7239 §4 (Forwarded) use it. Meaning of names and values belongs to the caller.

Deliberate differences, all towards leniency, because clients are:
- blanks around `=` are allowed;
- a quoted string that never ends reaches to the end of the field;
- a malformed parameter does not spoil its neighbours: it comes back as `MALFORMED`.

The time taken is linear in the size of the input whatever the input is.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_PARAMETER: Final = re.compile(
    r"""
    [ \t]*+ (?P<name>[^\s=;,"]++)? [ \t]*+
    (?: (?P<equals>=) [ \t]*+ (?: "(?P<quoted>(?:[^"\\]|\\.)*+)"?+ | (?P<plain>[^;,"]*+) ) )?
    [ \t]*+ (?P<rest>[^;,]*+) (?P<end>[;,]|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUOTED_PAIR: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One `name`, `name=value` or `name="value"`."""

    name: str
    """Lower case; empty for a malformed or missing parameter."""

    value: str | None
    """Unquoted and stripped of blanks; None when there is no `=`."""


MALFORMED: Final = Parameter("", None)
"""Stands where a parameter could not be read, so that positions keep their meaning."""


def parse_elements(field_values: Iterable[str]) -> list[tuple[Parameter, ...]]:
    """Return the comma-separated elements of all `field_values`, each as its `;` parameters.

    Several header lines of one name count as one list (RFC 9110 §5.3). Empty elements are left
    out (RFC 9110 §5.6.1). Never raises.
    """
    return [element for value in field_values for element in _elements(value)]


def _elements(field_value: str) -> list[tuple[Parameter, ...]]:
    elements: list[tuple[Parameter, ...]] = []
    element: list[Parameter] = []
    blank = True
    for match in _PARAMETER.finditer(field_value):
        blank = blank and not match[0].strip(" \t,")
        element.append(_parameter(match))
        if match["end"] == ";":
            continue
        if not blank:
            elements.append(tuple(element))
        element, blank = [], True
    return elements


def _parameter(match: re.Match[str]) -> Parameter:
    name = match["name"]
    if name is None or match["rest"]:
        return MALFORMED
    if match["equals"] is None:
        return Parameter(name.lower(), None)
    if match["quoted"] is not None:
        return Parameter(name.lower(), _QUOTED_PAIR.sub(r"\1", match["quoted"]))
    return Parameter(name.lower(), match["plain"].strip(" \t"))
