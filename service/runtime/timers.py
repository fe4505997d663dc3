"""Timers: what happens to a prediction at a moment, unless it is called off.

On the event loop's own monotonic clock, so a step of the wall clock moves no deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta


class Timers:
    """Named callbacks; each runs once, on the event loop, and must not block."""

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def after(self, name: str, delay: timedelta, call: Callable[[], None]) -> None:
        """Call `call` after `delay` (at once if negative); replaces a timer of the same name."""
        self.cancel(name)

        def fire() -> None:
            self._handles.pop(name, None)
            call()

        loop = asyncio.get_running_loop()
        self._handles[name] = loop.call_later(max(0.0, delay.total_seconds()), fire)

    def cancel(self, name: str) -> None:
        """Call a timer off; an unknown name is fine."""
        handle = self._handles.pop(name, None)
        if handle is not None:
            handle.cancel()

    def close(self) -> None:
        """Call all off."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()
