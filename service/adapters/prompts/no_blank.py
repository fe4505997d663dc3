"""Owns the blank that sentencepiece puts before a text: text that goes on after other text has none."""

from __future__ import annotations

from typing import Protocol

_LEAD = "\n"
"""Text that no tokenizer merges with what follows; it takes the blank."""


class Encode(Protocol):
    """The model's own tokenizer, without BOS and EOS."""

    def __call__(self, text: str, /, *, special: bool) -> list[int]:
        """Return the ids; `special`: whether special tokens in `text` count as such."""
        ...


class TokenizeWithoutBlank:
    """A `Tokenize` over a tokenizer that may add a blank. Thread-safe if that one is."""

    def __init__(self, encode: Encode, *, adds_blank: bool) -> None:
        """Encode once, if it adds blanks; raises what `encode` raises."""
        self._encode = encode
        self._lead = encode(_LEAD, special=False) if adds_blank else None

    def __call__(self, text: str, /, *, parse_special: bool, at_start: bool) -> list[int]:
        """See `Tokenize`."""
        if at_start or self._lead is None:
            return self._encode(text, special=parse_special)
        ids = self._encode(_LEAD + text, special=parse_special)
        if ids[: len(self._lead)] == self._lead:
            return ids[len(self._lead) :]
        return self._encode(text, special=parse_special)
