"""Owns how often and how soon a call that failed in passing is made again.

Pauses double from 50 ms to 2 s and carry ±50 % jitter, so that many streams that broke together do
not come back together. The budget bounds the time without progress, not the number of tries.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import anyio

from edge.upstream.errors import UpstreamError

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


class RetryBudget:
    """Time left for tries of one call or stream. `progress` fills it up again."""

    __slots__ = ("_deadline_s", "_jitter", "_length_s", "_pause_s")

    def __init__(self, length: timedelta, jitter: Callable[[], float] = random.random) -> None:
        self._length_s = length.total_seconds()
        self._jitter = jitter
        self._pause_s = FIRST_PAUSE_S
        self._deadline_s: float | None = None

    def progress(self) -> None:
        """Note that something arrived; cheap enough for every event."""
        if self._deadline_s is not None:
            self._deadline_s = None
            self._pause_s = FIRST_PAUSE_S

    async def pause(self, error: UpstreamError) -> None:
        """Wait before the next try, or raise `error` when the budget is used up."""
        now_s = anyio.current_time()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._length_s
        pause_s = self._pause_s * (0.5 + self._jitter())
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        if now_s + pause_s > self._deadline_s:
            raise error
        await anyio.sleep(pause_s)
