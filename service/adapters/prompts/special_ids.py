"""Rendered prompts to token ids.

Owns which text may become special tokens and that a prompt begins with one beginning-of-sequence
token. It knows no tokenizer library and no template.

One BOS. If the tokenizer wants one, the ids begin with exactly one, whoever wrote it: the
template, the caller's raw text or nobody. If it wants none, a BOS that the template writes stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from service.ports.engine import PromptError


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rendered prompt."""

    text: str
    special: bool
    """Whether special tokens in it count as such."""


class Tokenize(Protocol):
    """The model's tokenizer, without any token of its own at either end."""

    def __call__(self, text: str, /, *, parse_special: bool, at_start: bool) -> list[int]:
        """Return the ids; `at_start` is false for text that goes on after other text."""
        ...


def segment_ids(segments: Iterable[Segment], tokenize: Tokenize, bos_id: int | None) -> tuple[int, ...]:
    """Return the ids of a prompt; `bos_id` is None where the model wants no BOS."""
    ids: list[int] = []
    for segment in segments:
        if segment.text:
            ids += tokenize(segment.text, parse_special=segment.special, at_start=not ids)
    return with_one_bos(ids, bos_id)


def with_one_bos(ids: list[int], bos_id: int | None) -> tuple[int, ...]:
    """Return `ids` beginning with exactly one BOS, or as they are if `bos_id` is None."""
    if bos_id is None:
        return tuple(ids)
    first = 0
    while first < len(ids) and ids[first] == bos_id:
        first += 1
    return (bos_id, *ids[first:])


def checked_ids(ids: tuple[int, ...], vocabulary_size: int) -> tuple[int, ...]:
    """Return `ids`; raise PromptError if the model has no such token."""
    if not ids:
        raise PromptError("the prompt must not be empty")
    for i, token_id in enumerate(ids):
        if not 0 <= token_id < vocabulary_size:
            known = f"this model's tokens are 0 to {vocabulary_size - 1}"
            raise PromptError(f"token {i} of the prompt is {token_id}, but {known}")
    return ids
