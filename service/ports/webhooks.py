"""The webhook ports: what makes a call's body, and what carries it to its receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.domain.events import Entry
from service.domain.lifecycle import Prediction
from service.domain.webhook_delivery import Answer


class WebhookBody(Protocol):
    """Makes bodies."""

    def render(self, record: Prediction, entries: Sequence[Entry]) -> bytes:
        """Return what a reader of the prediction would get at this moment, byte for byte.

        `record` is the fold of `entries` and has a webhook. Never raises, whatever its context holds.
        """
        ...


class WebhookTransport(Protocol):
    """Promises:
    1. `post` makes one attempt and returns how it went; it raises nothing but cancellation.
    2. It takes a bounded time, whatever the receiver does, and holds a bounded part of the answer.
    3. Nothing is sent, and no connection opened, to a target or address that the policy refuses;
        every address of a name is judged, and the one judged is the one connected to.
    4. Redirects are not followed: their status is the answer.
    5. The body is sent as it is given.
    """

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer: ...
