"""Owns the pieces that output text is given out in, in GET's list and in SSE events alike.

The official Python and JavaScript clients turn an output string that starts with `https:` or
`data:` into a file object, in lists and in events, and may fetch it unasked. No piece may therefore
start so. A piece that would is cut after its first character; joined, the pieces give the text.

Deliberately wider than those clients: `http:` too, and any case, since other readers take those for
links and the cut costs nothing.

Pieces are a pure function of one log entry, so GET and SSE agree and later text never changes
earlier pieces. A writer may merge the pieces that wait into one event where `can_join` allows.
"""

import re
from typing import Final

_DANGEROUS: Final = re.compile(r"(?:https?|data):", re.ASCII | re.IGNORECASE)
_FIRST_LETTERS: Final = "hHdD"
_LONGEST_DANGEROUS: Final = len("https:")


def split_piece(text: str) -> tuple[str, ...]:
    """Return `text` as pieces: none for empty text, two for text that starts like a link, else one.

    No piece is empty, none starts with a link scheme, and joined they are `text`.
    """
    if not text:
        return ()
    if text[0] in _FIRST_LETTERS and _DANGEROUS.match(text):
        return (text[0], text[1:])
    return (text,)


def can_join(head: str, tail: str) -> bool:
    """Return whether the pieces `head` and `tail` may go out as one piece.

    `head` is a piece, or several joined by this rule. False only when the join would start with a
    link scheme, so at most the first few characters of an event are ever kept apart.
    """
    if len(head) >= _LONGEST_DANGEROUS or head[:1] not in _FIRST_LETTERS:
        return True
    return _DANGEROUS.match(head + tail[:_LONGEST_DANGEROUS]) is None
