"""Following: a reader of a live prediction that is no task of its own.

For a reader that serves many predictions at once: it is told that there may be news, and takes what
there is without waiting. A prediction that has ended is read by a `LogCursor` instead.
"""

from __future__ import annotations

from collections.abc import Callable

from service.domain.events import Completed, Entry
from service.runtime.cursor import PAGE
from service.runtime.live import LivePrediction


class Following:
    """One place in a live log. `leave` must be called once it is no longer needed."""

    def __init__(self, live: LivePrediction, after: int, watcher: Callable[[], None]) -> None:
        """`watcher` is called on the event loop whenever there may be news; it must not block."""
        self._live = live
        self._after = after
        self._watcher = watcher
        self.ended = False
        """Whether the log's end was taken."""
        live.readers += 1
        live.watchers.add(watcher)

    @property
    def abandoned(self) -> bool:
        """Whether nothing more comes although the end was not taken: another worker has the log."""
        return self._live.done.is_set() and not self.ended and len(self._live.entries) <= self._after

    def take(self) -> tuple[Entry, ...]:
        """Return entries after the place, at most 1000, and move it past them; maybe none."""
        entries = tuple(self._live.entries[self._after : self._after + PAGE])
        if entries:
            self._after = entries[-1].sequence
            self.ended = isinstance(entries[-1].event, Completed)
        return entries

    @property
    def has_more(self) -> bool:
        """Whether `take` would return something."""
        return len(self._live.entries) > self._after

    def leave(self) -> None:
        """End it; again is harmless."""
        if self._watcher in self._live.watchers:
            self._live.watchers.discard(self._watcher)
            self._live.readers -= 1
