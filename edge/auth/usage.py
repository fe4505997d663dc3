"""Owns how much each token uses: its two rates and the requests it has open.

One entry a token that was used since the grants were last read, so it needs no other bound. Counts
are this process's own: behind several edges each allows the limit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from edge.auth.demands import Rate
from edge.auth.grants import Grant
from edge.auth.token_bucket import TokenBucket, Verdict

MAX_ENTRIES: Final = 10_000
"""Far above the tokens in use at once; beyond, all counts start anew."""


@dataclass(frozen=True, slots=True)
class DefaultLimits:
    """For tokens without limits of their own."""

    creates_per_minute: int = 600
    """Replicate's own limit."""

    requests_per_minute: int = 3000
    """Everything but creates; Replicate's own limit."""

    concurrency: int = 100
    """Requests open at once, waits included, streams not."""


class TokenUsage:
    """What one token uses."""

    __slots__ = ("_buckets", "concurrency", "grant", "open")

    def __init__(self, grant: Grant, defaults: DefaultLimits, now_s: float) -> None:
        limits = grant.limits
        creates = limits.creates_per_minute or defaults.creates_per_minute
        others = limits.requests_per_minute or defaults.requests_per_minute
        self._buckets = {Rate.CREATES: TokenBucket(creates, now_s), Rate.OTHERS: TokenBucket(others, now_s)}
        self.grant = grant
        self.concurrency = limits.concurrency or defaults.concurrency
        self.open = 0
        """Requests that are being answered."""

    def take(self, rate: Rate, now_s: float) -> Verdict:
        """Count one call."""
        return self._buckets[rate].take(now_s)


class UsageTable:
    """The usage of every token. Used from the event loop's thread alone."""

    def __init__(self, defaults: DefaultLimits, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._defaults = defaults
        self._clock = clock
        self._used: dict[str, TokenUsage] = {}

    def of(self, grant: Grant) -> TokenUsage:
        """Return the token's usage; a grant whose limits were changed begins anew."""
        found = self._used.get(grant.id)
        if found is None or found.grant.limits != grant.limits:
            if len(self._used) >= MAX_ENTRIES:
                self._used.clear()
            found = self._used[grant.id] = TokenUsage(grant, self._defaults, self._clock())
        return found

    def take(self, grant: Grant, rate: Rate) -> Verdict:
        """Count one call of a token."""
        return self.of(grant).take(rate, self._clock())
