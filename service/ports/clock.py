"""The clock port: the only way the runtime reads time."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for display and deadlines, monotonic time for spans."""

    def now(self) -> datetime:
        """Return the present in UTC, aware, to the microsecond."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never step back."""
        ...
