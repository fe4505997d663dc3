"""Owns the tokenizer file that is made of a GGUF file's vocabulary, for tools that count tokens themselves.

The file has the form of the `tokenizers` library, so that no tool needs to fetch one. Only vocabularies of
byte-level BPE are read, which is what the demo model has.
"""

from __future__ import annotations

import json
from pathlib import Path

from gguf import GGUFReader

CONTROL = 3
"""GGUF's token type of those that never come from plain text."""

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


class UnknownVocabulary(Exception):
    """The file has a vocabulary of another kind."""


def write_tokenizer(model: Path, folder: Path) -> Path:
    """Write `tokenizer.json` into `folder`; return it. Raises UnknownVocabulary."""
    fields = GGUFReader(model).fields

    def read(name: str) -> list[str | int]:
        found: list[str | int] = fields[f"tokenizer.ggml.{name}"].contents()
        return found

    if fields["tokenizer.ggml.model"].contents() != "gpt2":
        raise UnknownVocabulary(f"{model.name} has no vocabulary of byte-level BPE")
    tokens = read("tokens")
    special = [at for at, kind in enumerate(read("token_type")) if kind == CONTROL]
    document = {
        "version": "1.0",
        "added_tokens": [_added(at, tokens[at]) for at in special],
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL],
        },
        "decoder": BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": read("merges"),
        },
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(document))
    return path


def _added(at: int, token: str | int) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": at, "content": token, "special": True, **flags}
