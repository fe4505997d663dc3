"""Constraints in the library's terms.

Owns how a JSON schema, a regular expression or a grammar becomes a grammar of llama.cpp's, and
the proof that the library took it: for the two forms that llguidance compiles, a mistake or an
unsupported keyword makes llama.cpp log a line and generate free text. So each is tried first on
one token, behind a literal that leaves the model no other choice; see `Trial`.

Regular expressions are those of Rust's regex crate without look-around and back-references, and
match the output as a whole. JSON schemas are draft 2020-12 as far as llguidance supports it; a
schema that it does not support in full is refused. `Grammar` is GBNF.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import assert_never

from service.adapters.engines.json_schema_text import checked_schema
from service.domain.request import Constraint, Grammar, JsonSchema, Regex
from service.ports.engine import ConstraintError

_HEAD = "%llguidance {}\n"
_LITERAL = "a"
_JSON = {
    # One form, as `json.dumps` writes it: a model can go on with blanks for ever where any are allowed.
    # (A pattern of blanks, as in the exllamav2 engine, has no effect in this build.)
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,  # a schema's own x-guidance must not have keywords ignored
}
_UNSUPPORTED = frozenset({
    "not", "if", "then", "else", "uniqueItems", "contains", "dependentRequired", "dependentSchemas",
    "propertyNames", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
})  # fmt: skip
"""Keywords that explain a refusal best; others are found by the trial only."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A constraint the library can be given."""

    grammar: str
    trial: str
    """The same behind `trial_literal`, or empty where the library itself reports errors."""


def compile_constraint(constraint: Constraint) -> Compiled:
    """Return the grammar of `constraint`. Raises ConstraintError for what is surely wrong."""
    rule = ""
    match constraint:
        case Grammar(text):
            if text.lstrip().startswith("%llguidance") or "\0" in text:
                raise ConstraintError("grammar must be GBNF, without NUL characters")
            return Compiled(text, "")
        case JsonSchema(text):
            rule = "body: %json " + _formed(checked_schema(text))
        case Regex(pattern):
            rule = f"body: /{_escaped(pattern)}/"
        case _ as unreachable:
            assert_never(unreachable)
    return Compiled(f"{_HEAD}start: body\n{rule}\n", f'{_HEAD}start: "{_LITERAL}" body\n{rule}\n')


def _formed(schema: str) -> str:
    """Return a schema with our `x-guidance`, whatever its own is."""
    value = json.loads(schema)
    if value is False:
        return schema
    return json.dumps({**(value if isinstance(value, dict) else {}), "x-guidance": _JSON})


def refusal(constraint: Constraint) -> str:
    """Return what to say of a constraint that failed its trial."""
    match constraint:
        case JsonSchema(text):
            found = sorted(_keywords(json.loads(text)) & _UNSUPPORTED)
            hint = f" (not supported: {', '.join(found)})" if found else ""
            return f"json_schema is not valid, or uses what this engine cannot follow{hint}"
        case Regex():
            return "regex is not valid, or uses look-around or back-references, which are not supported"
        case Grammar():
            return "grammar is not valid GBNF"
        case _ as unreachable:
            assert_never(unreachable)


def _keywords(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(*map(_keywords, value.values()))
    return set().union(*map(_keywords, value)) if isinstance(value, list) else set()


def _escaped(pattern: str) -> str:
    """Return `pattern` for between two slashes on one line."""
    if "\0" in pattern:
        raise ConstraintError("regex must not hold NUL characters")
    out: list[str] = []
    escape = False
    for char in pattern:
        if char == "/" and not escape:
            out.append("\\/")
        elif char in "\n\r":
            out.append(("" if escape else "\\") + {"\n": "n", "\r": "r"}[char])
        else:
            out.append(char)
        escape = char == "\\" and not escape
    if escape:
        raise ConstraintError("regex ends in a backslash")
    return "".join(out)
