"""What a create asks for, and when two creates ask for the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta

from service.domain.request import GenerationRequest
from service.domain.webhook import Webhook


@dataclass(frozen=True, slots=True)
class NewPrediction:
    """What a create asks for."""

    model: str
    request: GenerationRequest
    attached: bool = False
    request_id: str = ""
    cancel_after: timedelta | None = None
    labels: tuple[tuple[str, str], ...] = ()
    webhook: Webhook | None = None
    prediction_id: str = ""
    """The id it is to have; empty for one of ours."""

    def body_hash(self) -> bytes:
        """Return a digest that two creates share only if they ask for the same."""
        # A webhook's context is how its calls are written, not what is asked.
        told = self.webhook and (self.webhook.url, self.webhook.events)
        body = (self.model, self.request, self.attached, self.cancel_after, sorted(self.labels), told)
        return hashlib.sha256(repr(body).encode("utf-8", "backslashreplace")).digest()
