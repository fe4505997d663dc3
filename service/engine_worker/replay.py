"""Replay: an interrupted prediction is generated again from its prompt, up to where its log ends.

What was fed as a prompt and what was decoded token by token differ in the last bits of their
numbers, on every engine; a continuation behind a prefilled log may then take another word than the
uninterrupted run would have. Generating again takes longer, but gives the very same text (on the
same build, and alone on the engine), and a random generator or a grammar stands where it stood.
When that is worth it is `domain.continuation.worth_replaying`.

Owns the comparison alone: what is released while replaying must be the log, and is not shown again.
"""

from __future__ import annotations

from dataclasses import replace

from service.domain.stop import Released


class Diverged(Exception):
    """The engine generates something else than the log holds."""


class Replay:
    """Swallows what the log already has. One instance a job."""

    def __init__(self, text: str, generated_tokens: int) -> None:
        self._text = text
        self._tokens = generated_tokens
        self._seen_chars = 0
        self._seen_tokens = 0

    @property
    def over(self) -> bool:
        """Whether the end of the log has been reached."""
        return self._seen_chars >= len(self._text) and self._seen_tokens >= self._tokens

    def take(self, released: Released) -> Released | None:
        """Return what of `released` is new.

        Raises:
            Diverged: it is not what the log goes on with.
        """
        if self.over:
            return released
        start = self._seen_chars
        old = released.text[: len(self._text) - start]
        if not self._text.startswith(old, start):
            raise Diverged
        self._seen_chars += len(old)
        known = min(released.token_count, self._tokens - self._seen_tokens)
        self._seen_tokens += known
        new_text = released.text[len(old) :]
        if new_text and self._seen_tokens < self._tokens:
            raise Diverged
        if not new_text and known == released.token_count and released.matched_stop is None:
            return None
        return replace(
            released,
            text=new_text,
            token_ids=released.token_ids[known:],
            token_count=released.token_count - known,
            logprobs=released.logprobs[known:],
        )
