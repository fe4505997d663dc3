"""Owns what becomes of raw numbers: percentiles, medians, ratios with their spread. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from statistics import median


class Aim(Enum):
    """Which side of its bound a ratio should be on."""

    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing measured on ours and on a reference, alternately, some rounds long."""

    what: str
    unit: str
    ours: tuple[float, ...]
    """One value a round."""
    reference: tuple[float, ...]
    """As many."""
    reference_name: str
    aim: tuple[Aim, float] | None = None

    @property
    def ratio(self) -> float:
        """Return the medians' ratio; NaN where the reference is zero."""
        return quotient(median(self.ours), median(self.reference))

    @property
    def spread(self) -> tuple[float, float]:
        """Return the least and the largest ratio of one round."""
        ratios = [quotient(a, b) for a, b in zip(self.ours, self.reference, strict=True)]
        return min(ratios), max(ratios)

    @property
    def met(self) -> bool | None:
        """Return whether the aim is met; None without one."""
        if self.aim is None:
            return None
        side, bound = self.aim
        return self.ratio >= bound if side is Aim.AT_LEAST else self.ratio <= bound


@dataclass(frozen=True, slots=True)
class Amount:
    """One thing measured on ours alone."""

    what: str
    unit: str
    values: tuple[float, ...]
    """One value a try."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a part of the benchmarks found."""

    comparisons: tuple[Comparison, ...] = ()
    amounts: tuple[Amount, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know, if anything."""

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.comparisons + other.comparisons, self.amounts + other.amounts, self.notes + other.notes
        )


def quotient(above: float, below: float) -> float:
    """Return `above / below`, NaN for a division by zero."""
    return above / below if below else math.nan


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all do not exceed; NaN for none.

    Nearest rank: always a value that was measured. Raises ValueError unless 0 <= percent <= 100.
    """
    if not 0 <= percent <= 100:
        raise ValueError("percent must be 0 … 100")
    if not values:
        return math.nan
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]
