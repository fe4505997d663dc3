"""The bytes of each token, from tokenizer.json.

The library turns tokens into text one by one and repairs half characters by guessing; its text is
never used here. Two kinds of vocabulary are known, as for every model that the library runs:
byte-level BPE, written in GPT-2's printable stand-ins for bytes, and sentencepiece, with U+2581 for
a blank and `<0x0A>` for a byte. Others are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from service.ports.engine import EngineLoadError

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Built once."""

    pieces: tuple[bytes, ...]
    """By token id; empty for special tokens, and for ids that no token has."""
    special: Mapping[int, str]
    """Control tokens as they are written in a prompt."""
    space_prefix: bool
    """The tokenizer puts a blank before text (sentencepiece)."""

    @property
    def size(self) -> int:
        """Return the number of ids: one more than the highest."""
        return len(self.pieces)

    def showing(self, texts: Collection[str]) -> Vocabulary:
        """Return a vocabulary in which these special tokens have their text as bytes."""
        shown = {i: text.encode() for i, text in self.special.items() if text in texts}
        return replace(self, pieces=tuple(shown.get(i, piece) for i, piece in enumerate(self.pieces)))

    def id_of(self, text: str) -> int | None:
        """Return the special token that is written so."""
        return next((i for i, known in self.special.items() if known == text), None)


def read_vocabulary(tokenizer: Mapping[str, Any]) -> Vocabulary:
    """Build from tokenizer.json. Raises EngineLoadError for a kind that is not known."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    tokens = dict(_entries(vocab))
    if not tokens:
        raise EngineLoadError("tokenizer.json has no vocabulary: name a complete model folder")
    kinds = set(_types(tokenizer.get("decoder"))) | set(_types(tokenizer.get("pre_tokenizer")))
    byte_level = "ByteLevel" in kinds
    if not byte_level and not kinds & {"ByteFallback", "Metaspace"}:
        raise EngineLoadError(
            f"tokenizer.json is of a kind that is not known ({', '.join(sorted(kinds)) or 'no decoder'}): "
            "byte-level BPE and sentencepiece are"
        )
    alphabet = _byte_alphabet()
    added = [entry for entry in tokenizer.get("added_tokens") or [] if isinstance(entry, Mapping)]
    by_id = {i: _piece(text, alphabet if byte_level else None) for text, i in tokens.items()}
    special: dict[int, str] = {}
    for entry in added:
        i, text = int(entry["id"]), str(entry["content"])
        by_id[i] = b"" if entry.get("special") else text.encode()
        if entry.get("special"):
            special[i] = text
    pieces = tuple(by_id.get(i, b"") for i in range(max(by_id) + 1))
    return Vocabulary(pieces, special, space_prefix=not byte_level)


def _entries(vocab: object) -> Iterator[tuple[str, int]]:
    if isinstance(vocab, Mapping):
        yield from ((str(text), int(i)) for text, i in vocab.items())
    elif isinstance(vocab, list):  # Unigram: pairs of text and score, in the order of ids
        yield from ((str(pair[0]), i) for i, pair in enumerate(vocab))


def _types(part: object) -> Iterator[str]:
    """Yield the types of a pre-tokenizer or decoder and of what it consists of."""
    if isinstance(part, Mapping):
        yield str(part.get("type"))
        for value in part.values():
            yield from _types(value)
    elif isinstance(part, list):
        for value in part:
            yield from _types(value)


def _piece(text: str, alphabet: Mapping[str, int] | None) -> bytes:
    if alphabet is not None:
        if all(char in alphabet for char in text):
            return bytes(alphabet[char] for char in text)
        return text.encode()
    if found := _BYTE.fullmatch(text):
        return bytes([int(found[1], 16)])
    return text.replace("\u2581", " ").encode("utf-8", "replace")


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for bytes (`bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
