"""The system's clock behind the clock port."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Wall and monotonic time of this machine."""

    def now(self) -> datetime:
        """Return the present in UTC, aware."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never step back."""
        return time.monotonic()
