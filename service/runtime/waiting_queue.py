"""The waiting queue of a model: higher priority first, then the order of arrival.

Its bound is the dispatcher's (`queue_limit`): when full, creates are refused.
"""

from __future__ import annotations

import heapq

from service.runtime.live import LivePrediction


class WaitingQueue:
    """Predictions without a slot. Leaving out of turn is O(1); the place is dropped when met."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LivePrediction]] = []
        self._members: set[str] = set()
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._members)

    def push(self, live: LivePrediction, *, front: bool = False) -> None:
        """Add at the end of its priority, or (`front`) before all of it."""
        assert live.record.request is not None
        self._arrivals += 1
        place = -self._arrivals if front else self._arrivals
        self._members.add(live.id)
        heapq.heappush(self._heap, (-live.record.request.priority, place, live))

    def try_pop(self) -> LivePrediction | None:
        """Take the next one, or None."""
        while self._heap:
            live = heapq.heappop(self._heap)[2]
            if live.id in self._members:
                self._members.discard(live.id)
                return live
        return None

    def discard(self, live: LivePrediction) -> bool:
        """Leave out of turn. Return whether it was waiting."""
        if live.id not in self._members:
            return False
        self._members.discard(live.id)
        return True
