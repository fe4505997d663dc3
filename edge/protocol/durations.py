"""Owns the `Cancel-After` request header: its grammar and its bounds.

Grammar: whole seconds (`30`), or whole hours, minutes and seconds with units in falling order, each
at most once (`2h`, `1m30s`, `1h30m45s`). Published by Replicate in prose only; what they do with
other text is not, so everything else is refused: signs, blanks, fractions, upper case.

Deliberate difference: a number without unit after a unit (`1h30`) is refused, since people read it
both as minutes and as seconds.
"""

import re
from datetime import timedelta
from typing import Final

MIN_CANCEL_AFTER: Final = timedelta(seconds=5)
"""Shortest deadline a caller can set, counted from the creation of the prediction."""

MAX_CANCEL_AFTER: Final = timedelta(hours=24)
"""Longest deadline a caller can set, counted from the creation of the prediction."""

MAX_DIGITS: Final = 9
"""Longest number read; far above 24 h in seconds, and timedelta takes it in any unit."""

_PLAIN: Final = re.compile(r"[0-9]++")
_UNITS: Final = re.compile(r"(?:([0-9]++)h)?(?:([0-9]++)m)?(?:([0-9]++)s)?")


class DurationError(ValueError):
    """The text is no duration in our grammar, or out of bounds; the message is fit for callers."""


def parse_cancel_after(text: str) -> timedelta:
    """Return the duration that `text` means, 5 s … 24 h.

    Raises DurationError when the text is malformed or the duration out of bounds.
    """
    if not text:
        raise DurationError("Cancel-After is empty; write for example 30, 30s, 5m or 1h30m.")
    if _PLAIN.fullmatch(text):
        duration = _duration(None, None, text)
    elif match := _UNITS.fullmatch(text):
        duration = _duration(*match.groups())
    else:
        raise DurationError(
            "Cancel-After must be whole seconds (30), or hours, minutes and seconds in that order,"
            " each with its unit (2h, 5m, 1m30s, 1h30m45s), without blanks, signs or fractions."
        )
    if duration < MIN_CANCEL_AFTER:
        raise DurationError("Cancel-After must be at least 5 seconds (5s).")
    if duration > MAX_CANCEL_AFTER:
        raise DurationError("Cancel-After must be at most 24 hours (24h).")
    return duration


def _duration(hours: str | None, minutes: str | None, seconds: str | None) -> timedelta:
    return timedelta(hours=_number(hours), minutes=_number(minutes), seconds=_number(seconds))


def _number(digits: str | None) -> int:
    """Return the number, or the largest of `MAX_DIGITS` digits for one that is longer."""
    significant = (digits or "").lstrip("0") or "0"
    return int(significant if len(significant) <= MAX_DIGITS else "9" * MAX_DIGITS)
