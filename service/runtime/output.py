"""The data of a log, for representations that show it whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.events import Entry, Log, Output


@dataclass(frozen=True, slots=True)
class OutputSoFar:
    """What a log holds of text."""

    pieces: tuple[str, ...]
    """The text of each output entry, in order."""
    logs: str
    """The log lines, joined by line feeds."""


def output_of(entries: Sequence[Entry]) -> OutputSoFar:
    """Return the text of a log."""
    pieces = tuple(e.event.text for e in entries if isinstance(e.event, Output))
    return OutputSoFar(pieces, "\n".join(e.event.text for e in entries if isinstance(e.event, Log)))
