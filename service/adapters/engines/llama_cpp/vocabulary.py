"""The model's tokens: their bytes, their kinds, and which tokens made a character.

Owns the table from token id to bytes. llama.cpp streams whole characters only and names just the
last token of each; `split` finds the others where the bytes leave one possibility. It does not
tokenise text: the library does.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from service.adapters.engines.llama_cpp.gguf_file import GgufError, Value

_CONTROL, _UNKNOWN, _BYTE = 3, 2, 6
"""`tokenizer.ggml.token_type` of tokens that are not text, and of byte tokens such as `<0x0A>`."""
_MAX_SPLIT_BYTES = 16


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for bytes, which byte-level BPE vocabularies are written in."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Built once from a file's metadata."""

    pieces: tuple[bytes, ...]
    """By token id; empty for tokens that have no text."""
    special: dict[int, str]
    """Control tokens as they are written in a prompt."""
    bos: str
    eos: str
    space_prefix: bool
    """The tokenizer puts a blank before text (sentencepiece)."""
    ids: dict[bytes, tuple[int, ...]]
    """Which tokens have these bytes."""

    @classmethod
    def from_metadata(cls, metadata: dict[str, Value]) -> Vocabulary:
        """Build. Raises GgufError where the file has no vocabulary."""
        tokens = metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not tokens:
            raise GgufError("the file has no vocabulary")
        texts = [t.decode("utf-8", "replace") if isinstance(t, bytes) else "" for t in tokens]
        types = metadata.get("tokenizer.ggml.token_type")
        kinds = [int(k) for k in types if isinstance(k, int)] if isinstance(types, list) else []
        kinds += [1] * (len(texts) - len(kinds))
        sentencepiece = metadata.get("tokenizer.ggml.model") in {b"llama", b"t5", b"gemma4"}
        alphabet = _byte_alphabet()
        pieces = tuple(
            _piece(text, kind, alphabet, sentencepiece=sentencepiece)
            for text, kind in zip(texts, kinds, strict=False)
        )
        ids: dict[bytes, tuple[int, ...]] = {}
        for i, piece in enumerate(pieces):
            if piece:
                ids[piece] = (*ids.get(piece, ()), i)
        named = {k: metadata.get(f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos")}
        bos, eos = (texts[i] if isinstance(i, int) and 0 <= i < len(texts) else "" for i in named.values())
        return cls(
            pieces=pieces,
            special={i: t for i, (t, k) in enumerate(zip(texts, kinds, strict=False)) if k == _CONTROL and t},
            bos=bos,
            eos=eos,
            space_prefix=sentencepiece and metadata.get("tokenizer.ggml.add_space_prefix", True) is not False,
            ids=ids,
        )

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return len(self.pieces)

    def visible(self, token_id: int) -> bool:
        """Whether the library names this token whenever it is sampled: it leaves no character open."""
        return not _open(self.pieces[token_id])

    def split(self, data: bytes, last: int, count: int) -> tuple[int, ...] | None:
        """Return the `count` tokens, ending in `last`, whose bytes are `data`; None if not certain.

        Tokens without bytes are left out of account: none is expected inside a character.
        """
        ending = self.pieces[last]
        before = len(data) - len(ending)
        if not ending or not data.endswith(ending) or before > _MAX_SPLIT_BYTES:
            return None
        found = self._splits(data[:before], 0, count - 1)
        return (*found[0], last) if len(found) == 1 else None

    def _splits(self, data: bytes, start: int, count: int) -> list[tuple[int, ...]]:
        """Return at most two ways to make `data[start:]` of `count` tokens, each leaving a character open."""
        if count == 0:
            return [()] if start == len(data) else []
        found: list[tuple[int, ...]] = []
        for cut in range(start + 1, len(data) + 1):
            if not _open(data[:cut]):
                continue
            for token_id in self.ids.get(data[start:cut], ()):
                found += ((token_id, *rest) for rest in self._splits(data, cut, count - 1))
                if len(found) > 1:
                    return found[:2]
        return found


def _open(data: bytes) -> bool:
    """Whether `data` ends inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bool(decoder.getstate()[0])


def _piece(text: str, kind: int, alphabet: dict[str, int], *, sentencepiece: bool) -> bytes:
    if kind in {_CONTROL, _UNKNOWN}:
        return b""
    if kind == _BYTE:
        return bytes([int(text[3:-1], 16)])
    if sentencepiece:
        return text.replace("\u2581", " ").encode()
    if all(char in alphabet for char in text):
        return bytes(alphabet[char] for char in text)
    return text.encode()
