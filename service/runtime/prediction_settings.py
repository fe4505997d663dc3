"""The limits of every prediction, and which of them ends one by time alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.events import FinishReason, Status
from service.domain.lifecycle import Ending, Prediction


@dataclass(frozen=True, slots=True)
class PredictionSettings:
    """Limits of every prediction."""

    readers_limit: int = 16
    """Readers that may follow one prediction at a time."""
    run_limit: timedelta = timedelta(minutes=30)
    """From creation; a prediction that is not over by then fails."""
    attach_grace: timedelta = timedelta(seconds=10)
    """How long an attached prediction without its caller waits for it to come back."""
    owner_limit: int = 50
    """Unfinished predictions of one owner."""

    def time_limit(self, record: Prediction) -> tuple[datetime, Ending]:
        """Return when time alone ends a prediction, and how: its own deadline, or the run limit."""
        limit = record.created_at + self.run_limit
        if record.deadline is not None and record.deadline <= limit:
            return record.deadline, Ending(Status.CANCELED, FinishReason.DEADLINE)
        text = f"the prediction ran longer than the limit of {self.run_limit.total_seconds():g} s"
        return limit, Ending(Status.FAILED, FinishReason.ERROR, error=text)
