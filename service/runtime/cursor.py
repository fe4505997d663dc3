"""The log cursor: one reader's place in a prediction's log.

A reader holds nothing but its place: entries are the live prediction's own, or come from the store
a page at a time once it has ended. So a slow reader costs no memory and hinders nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.domain.events import Completed, Entry, Log, Output
from service.ports.store import PredictionLog
from service.runtime.live import LivePrediction

PAGE = 1000
"""Entries a call returns at most."""


@dataclass(frozen=True, slots=True)
class OutputSoFar:
    """The data of a log, for representations that show it whole."""

    pieces: tuple[str, ...]
    """The text of each output entry, in order."""
    logs: str
    """The log lines, joined by line feeds."""


def output_of(entries: Iterable[Entry]) -> OutputSoFar:
    """Return the data in these entries."""
    events = [entry.event for entry in entries]
    pieces = tuple(event.text for event in events if isinstance(event, Output))
    return OutputSoFar(pieces, "\n".join(event.text for event in events if isinstance(event, Log)))


class LogCursor:
    """Reads a log from any point to its end. One reader, one task."""

    def __init__(
        self, prediction_id: str, after: int, *, live: LivePrediction | None, store: PredictionLog
    ) -> None:
        self._id = prediction_id
        self._after = after
        self._live = live
        self._store = store
        self._ended = False
        self.returning = False
        """Set when an attached reader is sent away and may come back: it gets the grace for that."""

    async def next(self) -> tuple[Entry, ...]:
        """Wait for entries after the place and move it past them; `()` is the end of the log.

        Returns everything that is there, at most 1000 entries, in order. Cancellation loses
        nothing: the place moves only with what is returned.

        Raises:
            CursorExpired: the log was removed meanwhile.
            StoreUnavailable: the store cannot be read.
        """
        if self._ended:
            return ()
        entries = await (self._next_live(self._live) if self._live else self._next_stored())
        if entries:
            self._after = entries[-1].sequence
            self._ended = isinstance(entries[-1].event, Completed)
        else:
            self._ended = True
        return entries

    async def skip_to_end(self) -> None:
        """Wait until nothing more comes, and move the place there. Entries in between wake nobody."""
        if self._live is not None:
            await self._live.done.wait()
        self._ended = True

    async def _next_live(self, live: LivePrediction) -> tuple[Entry, ...]:
        while len(live.entries) <= self._after:
            if live.done.is_set():
                return ()
            await live.wait()
        return tuple(live.entries[self._after : self._after + PAGE])

    async def _next_stored(self) -> tuple[Entry, ...]:
        return await self._store.read(self._id, self._after, PAGE)
