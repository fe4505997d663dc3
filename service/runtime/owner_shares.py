"""How many unfinished predictions each owner has: no owner may fill the queue alone.

Predictions of nobody's (no tokens, or a trusted caller of the service itself) are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from service.domain.errors import QueueFull


class Share:
    """One place taken; given back unless it is kept."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = False


class OwnerShares:
    """Counts one place for each prediction from its admission to its end."""

    def __init__(self, limit: int) -> None:
        """At most `limit` places an owner."""
        self._limit = limit
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taking(self, owner: str) -> Iterator[Share]:
        """Take a place; `kept` has to be set for it to outlive the block.

        Raises:
            QueueFull: the owner has no place left.
        """
        if owner and self._taken[owner] >= self._limit:
            text = f"at most {self._limit} predictions of one owner may be unfinished; try again"
            raise QueueFull(text, retry_after=timedelta(seconds=1))
        self.add(owner)
        share = Share()
        try:
            yield share
        finally:
            if not share.kept:
                self.give_back(owner)

    def add(self, owner: str) -> None:
        """Count a prediction that exists, whatever the limit."""
        if owner:
            self._taken[owner] += 1

    def give_back(self, owner: str) -> None:
        """Count one less."""
        if owner:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]
