"""Complete characters out of a byte stream that is cut anywhere.

Owns the border between the bytes an engine produces and the text we log. Concatenated over any
cuts, its output equals `whole.decode("utf-8", "replace")` (Unicode §3.9, substitution of maximal
subparts), and no character is given out later than its last byte. It does not own stop strings
(`stop`), nor grapheme clusters: a ZWJ emoji may be cut between its code points.

A character that is still incomplete when generation ends becomes one U+FFFD. The log could also
have dropped it; one U+FFFD is what decoding the whole gives, so stream and record agree without
a second rule, and a reader sees that something was cut off.

Difference from the library: CPython's stateful decoder keeps the first two bytes of an encoded
surrogate (ED A0 to ED BF), which no third byte can make valid. Here they are two U+FFFD at once.
"""

from __future__ import annotations

import codecs

_REPLACEMENT = "\ufffd"


class CharacterAssembler:
    """Assemble UTF-8 bytes into characters, one piece at a time."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    @property
    def pending(self) -> bytes:
        """Return the incomplete character that is held back: at most 3 bytes."""
        return self._pending

    def feed(self, piece: bytes) -> str:
        """Return the characters that `piece` completes, and U+FFFD for what cannot become one."""
        if not self._pending and piece.isascii():
            return piece.decode("ascii")
        data = self._pending + piece
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        rest = data[consumed:]
        if rest and _is_half_surrogate(rest):
            text += _REPLACEMENT * len(rest)
            rest = b""
        self._pending = rest
        return text

    def continues(self, piece: bytes) -> bool:
        """Whether the first byte of `piece` belongs to the character that is held back."""
        if not self._pending or not piece:
            return False
        probe = CharacterAssembler()
        probe._pending = self._pending
        text = probe.feed(piece[:1])
        # A byte that does not belong leaves U+FFFD for the held bytes and something of its own.
        return len(text) + bool(probe._pending) == 1

    def flush(self) -> str:
        """End the text: return one U+FFFD if a character was left incomplete."""
        text = _REPLACEMENT if self._pending else ""
        self._pending = b""
        return text


def _is_half_surrogate(rest: bytes) -> bool:
    return len(rest) == 2 and rest[0] == 0xED and rest[1] >= 0xA0
