"""Owns one token bucket: how many calls may still be made, and when the next one may. Pure.

A bucket of a limit a minute holds that many calls when it is full, and fills evenly. So a caller may
use a minute's worth at once, and then goes on at the even rate. Time is an argument, in seconds of
any clock that does not run backwards.
"""

import math
from dataclasses import dataclass
from typing import Final

MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one call."""

    is_allowed: bool
    remaining: int
    """Calls that could be made at once after this one."""

    reset_s: int
    """Whole seconds until the bucket is full again, rounded up."""

    retry_after_s: int
    """Whole seconds until one more call is allowed, rounded up; 0 when this one was."""


class TokenBucket:
    """Calls within a limit a minute."""

    __slots__ = ("_filled", "_limit", "_seen_s")

    def __init__(self, limit: int, now_s: float) -> None:
        """`limit` calls a minute, at least 1; full at first."""
        if limit < 1:
            raise ValueError("a limit is at least 1 a minute")
        self._limit = limit
        self._filled = float(limit)
        self._seen_s = now_s

    def take(self, now_s: float) -> Verdict:
        """Take one call out; a refused one takes nothing, so asking again costs nothing."""
        rate = self._limit / MINUTE_S
        if now_s > self._seen_s:
            self._filled = min(float(self._limit), self._filled + (now_s - self._seen_s) * rate)
            self._seen_s = now_s
        is_allowed = self._filled >= 1
        if is_allowed:
            self._filled -= 1
        missing = 0.0 if is_allowed else 1 - self._filled
        return Verdict(
            is_allowed,
            remaining=math.floor(self._filled),
            reset_s=math.ceil((self._limit - self._filled) / rate),
            retry_after_s=math.ceil(missing / rate),
        )
