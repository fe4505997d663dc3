"""Owns the SSE ids of the Replicate dialect: a position in a prediction's event log as text.

An id is `<seconds>:<sequence>` or `<seconds>:<sequence>.<part>`:
- `seconds` is the prediction's created_at in whole Unix seconds, the same in every id of a
  prediction. It tells ids of another prediction apart (but for two made in the same second,
  where the ids are merely positions and still never show anything of the other prediction);
- `sequence` is the last log entry whose content the reader now has completely;
- `part` counts the events already sent of the entry after that one, when an entry makes several
  events (text that is split, or an `error` followed by a `done`). Left out when 0.

So an id is a pure function of prediction and log position: equal for all readers, replicas and
restarts, however entries are merged into events, and growing strictly from event to event. To
resume, read the log after `sequence` and skip the first `part` events of what comes.

Deliberate choice: an id that is malformed or of another prediction is answered as if there were
none, so the stream starts again from its beginning. Losing text silently would be worse, and a
browser's EventSource gives up for good on a 4xx. Source: WHATWG HTML, "Last-Event-ID".
"""

import re
from dataclasses import dataclass
from typing import Final

MAX_SEQUENCE: Final = 2**63 - 1
"""Largest log sequence: int64 in the log's protocol."""

MAX_PART: Final = 10**9 - 1
"""Largest part number; nine digits."""

MAX_ID_CHARS: Final = 42
"""Longest id: 12 digits, a colon, 19 digits, a dot, nine digits."""

_NUMBER: Final = r"0|[1-9][0-9]"
_ID: Final = re.compile(rf"({_NUMBER}{{0,11}}):({_NUMBER}{{0,18}})(?:\.([1-9][0-9]{{0,8}}))?")


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A position in the log of one prediction. Cursors compare in the order of the log."""

    sequence: int
    """Last entry delivered completely; 0 before the first entry."""

    part: int = 0
    """Events delivered of the entry after `sequence`; 0 when none."""

    def __post_init__(self) -> None:
        if not 0 <= self.sequence <= MAX_SEQUENCE:
            raise ValueError("sequence must be 0 … 2**63 - 1")
        if not 0 <= self.part <= MAX_PART:
            raise ValueError("part must be 0 … 999999999")


def cursor_after(sequence: int, part: int, parts: int) -> Cursor:
    """Return the position after event `part` of the `parts` events of log entry `sequence`.

    Entries and parts count from 1. The last part completes the entry. Raises ValueError unless
    1 <= part <= parts and sequence >= 1.
    """
    if not 1 <= part <= parts:
        raise ValueError("part must be 1 … parts")
    if sequence < 1:
        raise ValueError("sequence must be at least 1")
    return Cursor(sequence) if part == parts else Cursor(sequence - 1, part)


def format_id(created_unix_s: int, sequence: int, part: int = 0) -> str:
    """Return the id of the position (`sequence`, `part`): printable ASCII, at most 42 characters.

    The arguments are the fields of a `Cursor`; they are not checked again here, since this runs
    once an event.
    """
    return f"{created_unix_s}:{sequence}.{part}" if part else f"{created_unix_s}:{sequence}"


def parse_last_event_id(text: str | None, created_unix_s: int) -> Cursor | None:
    """Return the position to resume after, or None: replay from the start.

    None when there is no id, or it is malformed, negative, too long, not written as `format_id`
    writes it, or of a prediction created in another second. A position beyond the end of the log
    is returned as it is. Never raises.
    """
    if not text or len(text) > MAX_ID_CHARS:
        return None
    match = _ID.fullmatch(text)
    if match is None or int(match[1]) != created_unix_s:
        return None
    sequence = int(match[2])
    if sequence > MAX_SEQUENCE:
        return None
    return Cursor(sequence, int(match[3] or 0))
