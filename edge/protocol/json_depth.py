"""Owns the nesting check of a JSON text before it is parsed.

Parsers recurse; a body of nothing but opening brackets makes some of them fail in ways that are no
syntax error. This check is exact for as much of the text as a parser can read (RFC 8259 §2), and
takes time linear in the text. Whether the text is JSON at all is the parser's business: a malformed
text may be answered either way, but what a parser reads of it before its first error is never
deeper than the limit when the answer is True.
"""

import itertools
import operator
from typing import Final

_IRRELEVANT: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_BITS: Final = bytes.maketrans(b"[{]}", b"1100")


def _heights(packed: int) -> list[int]:
    """Return the heights reached within eight brackets, the start included; a set bit opens."""
    steps = (1 if packed >> bit & 1 else -1 for bit in range(7, -1, -1))
    return list(itertools.accumulate(steps, initial=0))


_NET: Final = bytes(_heights(packed)[-1] % 256 for packed in range(256))  # as signed bytes
_PEAK: Final = bytes(max(_heights(packed)) for packed in range(256))


def is_within_depth(raw: bytes, limit: int) -> bool:
    """Return whether arrays and objects in `raw` nest at most `limit` deep; a scalar is depth 0.

    `raw` must be the UTF-8 text itself: decode it as UTF-8 afterwards, since a parser that guesses
    UTF-16 or UTF-32 would read other brackets than those counted here. Raises ValueError when
    `limit` is negative.
    """
    if limit < 0:
        raise ValueError("limit must not be negative")
    bits = _bracket_bits(raw)
    packed = int(bits, 2).to_bytes(len(bits) // 8, "big")  # eight brackets a step
    heights = itertools.accumulate(memoryview(packed.translate(_NET)).cast("b"), initial=0)
    depth: int = max(map(operator.add, heights, packed.translate(_PEAK)))
    return depth <= limit


def _bracket_bits(raw: bytes) -> bytes:
    """Return the brackets outside strings as digits, 1 opens and 0 closes, in groups of eight."""
    if b"\\" in raw:
        # Escapes matter inside strings only; outside them a backslash is where a parser stops.
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    relevant = raw.translate(_BITS, _IRRELEVANT)
    # Two quotes side by side are an empty string or the seam of two strings: no bracket outside.
    bits = b"".join(relevant.replace(b'""', b"").split(b'"')[::2])
    return bits + b"0" * (8 - len(bits) % 8)  # closing brackets at the end change no peak
