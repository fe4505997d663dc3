"""Owns the one-way road from serving to stopped: who is told what, in which order.

serving → draining (readiness says no, all else goes on) → closing (streams end with a `retry` hint,
waits are answered early) → stopped (the server exits by itself).
"""

from datetime import timedelta

import anyio


class Lifecycle:
    """Where this process stands. Made in the loop that uses it."""

    __slots__ = ("_closing", "_draining")

    def __init__(self) -> None:
        self._draining = anyio.Event()
        self._closing = anyio.Event()

    @property
    def is_draining(self) -> bool:
        """Whether new traffic should go elsewhere."""
        return self._draining.is_set()

    def begin_drain(self) -> None:
        """Enter draining; in the loop's thread only. Further calls change nothing."""
        self._draining.set()

    async def wait_draining(self) -> None:
        """Return once draining has begun."""
        await self._draining.wait()

    async def wait_closing(self) -> None:
        """Return once long answers have to end."""
        await self._closing.wait()

    async def run(self, notice: timedelta) -> None:
        """Wait for the drain to begin, leave balancers `notice` to see it, then enter closing."""
        await self._draining.wait()
        await anyio.sleep(notice.total_seconds())
        self._closing.set()
