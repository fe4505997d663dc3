"""What a create asks for, what makes two of them the same, and the record that one makes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.domain.lifecycle import Prediction
from service.domain.request import GenerationRequest
from service.runtime.ids import new_id


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """What a create asks for."""

    model: str
    request: GenerationRequest
    attached: bool = False
    request_id: str = ""
    cancel_after: timedelta | None = None
    labels: tuple[tuple[str, str], ...] = ()
    owner: str = ""
    """Whose it will be; empty for nobody's."""
    prediction_id: str = ""
    """The id it is to have; empty for one of ours."""

    def body_hash(self) -> bytes:
        """Return a digest that two creates share only if they ask for the same.

        Owner and chosen id are no part of it: they name a create, and are compared as names.
        """
        body = (self.model, self.request, self.attached, self.cancel_after, sorted(self.labels))
        return hashlib.sha256(repr(body).encode("utf-8", "backslashreplace")).digest()

    def fits(self, earlier: Prediction) -> bool:
        """Return whether what the request id names is what the id names, if both are given."""
        return self.prediction_id in ("", earlier.id)

    def record(self, now: datetime) -> Prediction:
        """Return the record before its first event."""
        return Prediction(
            id=self.prediction_id or new_id(),
            model=self.model,
            request=self.request,
            created_at=now,
            attached=self.attached,
            request_id=self.request_id,
            deadline=now + self.cancel_after if self.cancel_after else None,
            labels=self.labels,
            epoch=1,
            owner=self.owner,
        )
