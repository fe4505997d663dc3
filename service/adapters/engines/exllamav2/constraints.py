"""Constraints in llguidance's terms.

Owns how a JSON schema, a regular expression or a grammar is compiled for this model's tokens, and
its bounds: the compiler gives up at its own limits of size and work, and a schema's nesting is
capped before. Nothing that is wrong or not supported passes silently: warnings refuse too.

JSON schemas are draft 2020-12 as far as llguidance supports it. Regular expressions are those of
Rust's regex crate without look-around and back-references, and match the output as a whole.
`Grammar` is llguidance's Lark dialect, or GBNF, which is translated to it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, assert_never

import llguidance

from service.adapters.engines.json_schema_text import checked_schema
from service.domain.request import Constraint, Grammar, JsonSchema, Regex, constraint_field
from service.ports.engine import ConstraintError, EngineLoadError

_JSON: Any = {
    # One line's indentation at most between two tokens of JSON: models can go on with blanks for ever.
    "whitespace_pattern": r"([ ]|\n[ \t]{0,64})",
    "lenient": False,  # a schema's own x-guidance must not have keywords ignored
}
_QUIET = 0
_MAX_ERROR = 300


class Constraints:
    """Compile constraints for one model's tokens. Thread-safe."""

    def __init__(self, tokenizer: Mapping[str, Any], vocabulary_size: int, eos: frozenset[int]) -> None:
        """Read the vocabulary. Raises EngineLoadError."""
        self._lock = threading.Lock()
        try:
            self._tokenizer = llguidance.LLTokenizer(
                json.dumps(dict(tokenizer)), n_vocab=vocabulary_size, eos_token=sorted(eos) or None
            )
        except ValueError as error:
            raise EngineLoadError(f"llguidance cannot read tokenizer.json ({error})") from error
        self._limits = llguidance.LLParserLimits()

    def compile(self, constraint: Constraint) -> llguidance.LLMatcher:
        """Return a matcher at its beginning, for one job. Raises ConstraintError."""
        source = _source(constraint)
        with self._lock:
            failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
                source, self._tokenizer, limits=self._limits
            )
            if failed or messages:
                raise ConstraintError(f"{constraint_field(constraint)} {_shown(messages)}")
            matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=_QUIET, limits=self._limits)
        if matcher.is_error():
            raise ConstraintError(f"{constraint_field(constraint)} {_shown([matcher.get_error()])}")
        return matcher


def _source(constraint: Constraint) -> str:
    try:
        match constraint:
            case JsonSchema(text):
                return str(
                    llguidance.LLMatcher.grammar_from_json_schema(checked_schema(text), overrides=_JSON)
                )
            case Regex(pattern):
                return str(llguidance.grammar_from("regex", pattern))
            case Grammar(text):
                return str(llguidance.grammar_from("grammar", text))
            case _ as unreachable:
                assert_never(unreachable)
    except ValueError as error:
        raise ConstraintError(f"{constraint_field(constraint)} {_shown([str(error)])}") from error


def _shown(messages: list[str]) -> str:
    text = " ".join("; ".join(messages).split())[:_MAX_ERROR]
    return f"is not valid, or uses what this engine cannot follow: {text}"
