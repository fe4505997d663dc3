"""Owns the `Prefer` request header: how long a create may hold, and what to say we applied.

Specification: RFC 7240 (Prefer), §2 syntax, §4.1 respond-async, §4.3 wait. What a prediction does
while a caller holds is not decided here.

Deliberate differences, because real clients send such values:
- `wait` may carry a fraction (rounded up) and any size (clamped to 1 s … 60 s);
- a bare or empty `wait` means 60 s;
- a `wait` whose value is no number is as if it were not there, and does not hide a later one;
  otherwise the first instance counts, as §2 says.

`wait` and `respond-async` together keep their RFC meaning: hold that long, then answer early.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from edge.protocol.header_lists import parse_elements

MIN_WAIT_S: Final = 1
"""Shortest hold a caller can ask for, in seconds."""

MAX_WAIT_S: Final = 60
"""Longest hold, in seconds: official clients give up at 60 s or just after."""

MAX_HOLD_MARGIN: Final = timedelta(milliseconds=750)
"""How much earlier than asked we answer: a client limit of 60.0 s only just passes on loopback."""

HOLD_MARGIN_DIVISOR: Final = 10
"""The margin is never more than a tenth of the wait, so a short wait stays a wait."""

_NUMBER: Final = re.compile(r"([0-9]++)(?:\.([0-9]++))?")


@dataclass(frozen=True, slots=True)
class Preference:
    """What the caller prefers, already clamped to what we grant."""

    wait: timedelta | None = None
    """1 s … 60 s in whole seconds; None when the caller did not ask to wait."""

    respond_async: bool = False
    """Whether `respond-async` was there; alone it means what no preference means."""

    wait_applied: str | None = None
    """Value of `Preference-Applied`: `wait`, or `wait=N` with the N applied; None without wait."""


def parse_prefer(header_values: Sequence[str]) -> Preference:
    """Return the preferences found in all `Prefer` header lines of a request, in their order.

    Unknown preferences and parameters are ignored (RFC 7240 §2). Never raises.
    """
    wait_s: int | None = None
    applied: str | None = None
    respond_async = False
    for preference, *_ in parse_elements(header_values):
        if preference.name == "respond-async":
            respond_async = True
        elif preference.name == "wait" and wait_s is None:
            if not preference.value:
                wait_s, applied = MAX_WAIT_S, "wait"
            elif (wait_s := _clamped_seconds(preference.value)) is not None:
                applied = f"wait={wait_s}"
    wait = None if wait_s is None else timedelta(seconds=wait_s)
    return Preference(wait, respond_async, applied)


def hold(wait: timedelta) -> timedelta:
    """Return how long to hold in truth, so that the answer arrives before the client gives up.

    The margin is a tenth of `wait`, at most 0.75 s: 0.9 s for 1 s, 4.5 s for 5 s, 59.25 s for 60 s.
    Raises ValueError unless `wait` is positive.
    """
    if wait <= timedelta(0):
        raise ValueError("wait must be positive")
    return wait - min(wait / HOLD_MARGIN_DIVISOR, MAX_HOLD_MARGIN)


def _clamped_seconds(text: str) -> int | None:
    """Return `text` rounded up and clamped, or None when it is no number."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    digits = match[1].lstrip("0")
    if len(digits) > len(str(MAX_WAIT_S)):  # so int() never sees a number of hostile length
        return MAX_WAIT_S
    seconds = int(digits or "0") + bool((match[2] or "").strip("0"))
    return min(max(seconds, MIN_WAIT_S), MAX_WAIT_S)
