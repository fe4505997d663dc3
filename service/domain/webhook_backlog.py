"""The backlog of deliveries: which may be tried now, host by host.

Owns fairness: a host that does not answer holds up its own deliveries only. At most `per_host` are
under way for one host, and one for a host whose last attempt failed, until one succeeds. A delivery
that is under way is not in the backlog; whoever took it gives it back with `finished`.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime

from service.domain.webhook_delivery import Delivery


@dataclass(slots=True)
class _Host:
    ready: deque[Delivery] = field(default_factory=deque)
    running: int = 0
    failing: bool = False


class Backlog:
    """Unsettled deliveries, each once. Bounded by `limit`: what is beyond stays in the store."""

    def __init__(self, *, limit: int, per_host: int) -> None:
        self._limit = limit
        self._per_host = per_host
        self._known: set[str] = set()
        self._later: list[tuple[datetime, str, str, Delivery]] = []
        self._hosts: dict[str, _Host] = {}
        self._ready = 0
        self.running = 0
        """Taken and not finished."""
        self.overflowed = False
        """Whether a delivery was turned away: look into the store again when there is room."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def busy(self) -> bool:
        """Whether something is under way or ready to be."""
        return bool(self.running or self._ready)

    @property
    def has_room(self) -> bool:
        """Whether it is at most half full."""
        return len(self._known) * 2 <= self._limit

    def add(self, delivery: Delivery, host: str) -> None:
        """Take in a delivery, unless it is here, settled, or there is no room."""
        if delivery.next_at is None or delivery.id in self._known:
            return
        if len(self._known) >= self._limit:
            self.overflowed = True
            return
        self._known.add(delivery.id)
        heapq.heappush(self._later, (delivery.next_at, delivery.id, host, delivery))

    def take(self, now: datetime) -> list[tuple[str, Delivery]]:
        """Return what is to be tried now, with its host; it is under way from then on."""
        while self._later and self._later[0][0] <= now:
            _, _, name, delivery = heapq.heappop(self._later)
            self._hosts.setdefault(name, _Host()).ready.append(delivery)
            self._ready += 1
        taken: list[tuple[str, Delivery]] = []
        for name, host in self._hosts.items():
            allowed = 1 if host.failing else self._per_host
            while host.ready and host.running < allowed:
                taken.append((name, host.ready.popleft()))
                host.running += 1
        self._ready -= len(taken)
        self.running += len(taken)
        return taken

    def finished(self, host: str, before: Delivery, after: Delivery) -> None:
        """Say how an attempt left its delivery; one that is not settled waits for its next attempt."""
        state = self._hosts[host]
        state.running -= 1
        self.running -= 1
        state.failing = not after.delivered
        self._known.discard(before.id)
        self.add(after, host)
        if not state.running and not state.ready and not state.failing:
            del self._hosts[host]
        elif len(self._hosts) > self._limit:
            self._forget_idle()

    def next_at(self) -> datetime | None:
        """Return when the next delivery becomes ready; None when none waits for a time."""
        return self._later[0][0] if self._later else None

    def _forget_idle(self) -> None:
        idle = [name for name, host in self._hosts.items() if not host.running and not host.ready]
        for name in idle:
            del self._hosts[name]
