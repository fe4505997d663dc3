"""Placeholders for what a caller's text must not be to the tokenizer: a special token.

Owns the cutting: a special token's text is cut out of a text before the template sees it, and put back
as a segment of its own, to be tokenised as plain text. With `edges`, what begins or ends a text and
could be one half of a token is cut out as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence

from service.adapters.prompts.special_ids import Segment

_SCHEMA_WORDS = frozenset({
    "type", "properties", "required", "items", "enum", "const", "description", "default", "title", "format",
    "anyOf", "allOf", "oneOf", "additionalProperties", "nullable", "minimum", "maximum", "minLength",
    "maxLength", "pattern", "minItems", "maxItems",
    "string", "number", "integer", "boolean", "object", "array", "null",
})  # fmt: skip
"""Templates ask for these keys and types by name, so their edges stay."""


class SpecialTokens:
    """The texts that must not count in what a caller writes."""

    def __init__(self, tokens: Collection[str]) -> None:
        self.all = sorted({t for t in tokens if t}, key=lambda t: (-len(t), t))
        self.pattern = re.compile(_any_of(self.all) or r"(?!)")
        self._joined = "\0".join(self.all)
        self._grams = frozenset(
            t[i : i + n] for t in self.all for n in (1, 2, 3) for i in range(len(t) - n + 1)
        )
        self._heads = frozenset(t[i:] for t in self.all for i in range(1, len(t)))
        self._tails = frozenset(t[:i] for t in self.all for i in range(1, len(t)))
        self._longest = max(map(len, self.all), default=0)

    def edges(self, body: str) -> tuple[int, int]:
        """Return the lengths of the longest head that ends, and tail that begins, some special token.

        A body from the middle of a token is all head.
        """
        if len(body) < self._longest and self._inside(body):
            return len(body), 0
        reach = min(len(body), self._longest)
        head = next((n for n in range(reach, 0, -1) if body[:n] in self._heads), 0)
        reach = min(len(body) - head, self._longest)
        tail = next((n for n in range(reach, 0, -1) if body[-n:] in self._tails), 0)
        return head, tail

    def _inside(self, body: str) -> bool:
        """Whether a token holds `body`. Most texts are told apart by their ends alone."""
        if len(body) <= 3:
            return body in self._grams
        return body[:3] in self._grams and body[-3:] in self._grams and body in self._joined


def _any_of(words: Sequence[str], at: int = 0) -> str:
    """Return a pattern of these words, the longest first, which share their first `at` characters.

    It branches by character: a vocabulary has up to some thousand tokens, which mostly begin alike, and
    trying one after another takes seconds for a text that is full of beginnings.
    """
    branches: dict[str, list[str]] = {}
    for word in words:
        branches.setdefault(word[at : at + 1], []).append(word)
    patterns = []
    for char, alike in branches.items():
        if not char:
            continue
        end = at + 1
        while len({word[end : end + 1] for word in alike}) == 1 and alike[0][end : end + 1]:
            end += 1
        patterns.append(re.escape(alike[0][at:end]) + (_any_of(alike, end) if len(alike) > 1 else ""))
    if "" in branches:  # a word ends here; longer ones go first
        patterns.append("")
    return f"(?:{'|'.join(patterns)})" if patterns else ""


class Placeholders:
    """What was cut out of the texts of one rendering."""

    def __init__(self, tokens: SpecialTokens, mark: str, *, edges: bool) -> None:
        """`mark` begins and ends a placeholder; no text and no template may hold it."""
        self._tokens = tokens
        self._mark = mark
        self._edges = edges
        self._numbers: dict[str, int] = {}
        """Of each text that was cut out. One a text, as templates compare what they are given."""

    def word(self, content: str) -> str:
        """Return a key or text of the caller's JSON with placeholders; `_SCHEMA_WORDS` keep their edges."""
        return self._replaced(content) if content in _SCHEMA_WORDS else self.text(content)

    def text(self, content: str) -> str:
        """Return `content` with placeholders."""
        if not self._edges:
            return self._replaced(content)
        body = content.strip()  # templates trim: the body meets its neighbours
        if not body:
            return content
        head, tail = self._tokens.edges(body)
        before, _, after = content.partition(body)
        end = len(body) - tail
        return "".join(
            (
                before,
                self._placeholder(body[:head]) if head else "",
                self._replaced(body[head:end]),
                self._placeholder(body[end:]) if tail else "",
                after,
            )
        )

    def segments(self, rendered: str) -> tuple[Segment, ...]:
        """Split a rendering at its placeholders."""
        if not self._numbers:
            return (Segment(rendered, special=True),) if rendered else ()
        found: list[Segment] = []
        texts = list(self._numbers)
        either = f"(?:{re.escape(self._mark)}|{re.escape(in_ascii(self._mark))})"
        for i, part in enumerate(re.split(f"{either}([0-9]+){either}", rendered)):
            if i % 2:
                found.append(Segment(texts[int(part)], special=False))
            elif part:
                found.append(Segment(part, special=True))
        return tuple(found)

    def _replaced(self, text: str) -> str:
        return self._tokens.pattern.sub(lambda match: self._placeholder(match.group()), text)

    def _placeholder(self, text: str) -> str:
        number = self._numbers.setdefault(text, len(self._numbers))
        return f"{self._mark}{number}{self._mark}"


def free_mark(texts: Iterable[str]) -> str:
    """Return a mark that stands in none of the texts, neither as it is nor in JSON's ASCII form."""
    everything = list(texts)
    mark = "\ue0f1"
    while any(mark in text or in_ascii(mark) in text for text in everything):
        mark += "\ue0f2\ue0f1"
    return mark


def in_ascii(mark: str) -> str:
    """Return a mark as `tojson(ensure_ascii=True)` writes it."""
    return json.dumps(mark)[1:-1]
