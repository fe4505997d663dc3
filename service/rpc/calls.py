"""The calls that are open: which reader has stalled, and how they end when the service stops.

A stalled write is found by one sweep over all open calls, not by a timer a token: a write then
costs two attribute stores and a clock read. The call is cancelled through its own scope, in its
own task, and leaves with the error that says why.
"""

from __future__ import annotations

import math
from datetime import timedelta
from types import TracebackType

import anyio

from service.domain.errors import Draining, ReaderTooSlow, TailraceError
from service.ports.clock import Clock

SWEEPS_PER_LIMIT = 4
"""A stall is found at most a quarter of the limit late."""


class OpenCall:
    """One open call, entered by its handler. Leaving it by `end` raises the error given there."""

    __slots__ = ("_calls", "_ending", "_scope", "lasting", "write_began")

    def __init__(self, calls: OpenCalls, *, lasting: bool) -> None:
        self._calls = calls
        self.lasting = lasting
        """Ends only with one of the processes: nothing to wait for in a drain."""
        self._scope = anyio.CancelScope()
        self._ending: TailraceError | None = None
        self.write_began = math.inf
        """Monotonic time at which the write under way began; infinite between writes."""

    @property
    def ended_by_us(self) -> bool:
        """Whether `end` was called: the caller was sent away, it did not go."""
        return self._ending is not None

    def end(self, error: TailraceError) -> None:
        """Cancel what the call waits for and let it end with `error`. The first one counts."""
        if self._ending is None:
            self._ending = error
            self._scope.cancel()

    def __enter__(self) -> OpenCall:
        self._scope.__enter__()
        self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.remove(self)
        if self._scope.__exit__(kind, value, trace) and self._ending is not None:
            raise self._ending


class OpenCalls:
    """All calls that can be open for long. Bounded by the server's limit of concurrent calls."""

    def __init__(self, clock: Clock, stall_limit: timedelta) -> None:
        self._clock = clock
        self._limit_s = stall_limit.total_seconds()
        self.open: set[OpenCall] = set()
        self._empty = anyio.Event()
        self.swept = anyio.Event()
        """Set by the next sweep, then replaced."""

    def __len__(self) -> int:
        return len(self.open)

    def enter(self, *, lasting: bool = False) -> OpenCall:
        """Return a new call, to be entered with `with`."""
        return OpenCall(self, lasting=lasting)

    def add(self, call: OpenCall) -> None:
        """Take a call in; it does so itself."""
        self.open.add(call)

    def remove(self, call: OpenCall) -> None:
        """Let a call go; it does so itself."""
        self.open.discard(call)
        if not self._busy():
            empty, self._empty = self._empty, anyio.Event()
            empty.set()

    async def run(self) -> None:
        """End calls whose reader takes nothing, until cancelled."""
        while True:
            await anyio.sleep(self._limit_s / SWEEPS_PER_LIMIT)
            self.sweep()
            swept, self.swept = self.swept, anyio.Event()
            swept.set()

    def sweep(self) -> None:
        """End each call whose write began longer ago than the stall limit."""
        oldest = self._clock.monotonic() - self._limit_s
        for call in tuple(self.open):
            if call.write_began < oldest:
                text = f"the reader took nothing for {self._limit_s:g} s; resume after the last event seen"
                call.end(ReaderTooSlow(text))

    async def wait_empty(self) -> None:
        """Wait until no call is open but lasting ones."""
        while self._busy():
            await self._empty.wait()

    def _busy(self) -> bool:
        return any(not call.lasting for call in self.open)

    def end_all(self) -> None:
        """End every call because the service stops."""
        for call in tuple(self.open):
            call.end(Draining("the service is stopping; resume after the last event seen"))
