"""A delivery: one call that must arrive, over all its attempts, and the schedule of these.

Owns when the next attempt is made and when none is any more. Receivers answer with 2xx or the
attempt has failed (Standard Webhooks 1.0.0, "HTTP status codes"); 410 says that they want no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from service.domain.public_text import public_text
from service.domain.webhook import WebhookEvent

RETRY_DELAYS = (
    timedelta(0),
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(minutes=30),
)
"""Before each attempt, from the end of the one before; `docs/api/webhooks.md` prints it."""
JITTER = 0.2
"""Share by which a delay is longer or shorter, so that receivers are not called in step."""
MAX_RETRY_AFTER = timedelta(hours=1)
"""Longest wait that a receiver's `Retry-After` can ask for."""
MAX_ERROR_CHARS = 200
GONE = 410


@dataclass(frozen=True, slots=True)
class Delivery:
    """One call and what became of it. Its body is kept beside it, byte for byte, until it is settled."""

    id: str
    """The `webhook-id`."""
    prediction_id: str
    event: WebhookEvent
    url: str
    created_at: datetime
    next_at: datetime | None
    """When the next attempt is due; None once it is settled."""
    attempts: int = 0
    delivered: bool = False
    given_up: bool = False
    last_status: int = 0
    """0 if the last attempt had no answer, or there was none."""
    last_error: str = ""
    attempted_at: datetime | None = None
    owner: str = ""
    """Whose prediction it tells of: what it is signed with is the owner's."""

    @property
    def settled(self) -> bool:
        """Whether no attempt follows."""
        return self.next_at is None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A delivery with its body, to be stored."""

    delivery: Delivery
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt went."""

    status: int = 0
    """0: there was none."""
    error: str = ""
    """Why it failed, for people; empty if the answer says it."""
    retry_after: timedelta | None = None

    @property
    def accepted(self) -> bool:
        """Whether the receiver took it."""
        return 200 <= self.status < 300


def after_attempt(delivery: Delivery, answer: Answer, now: datetime, jitter: float) -> Delivery:
    """Return the delivery after an attempt that ended at `now`; `jitter` is from -1 to 1."""
    attempts = delivery.attempts + 1
    tried = replace(
        delivery,
        attempts=attempts,
        last_status=answer.status,
        last_error="" if answer.accepted else _error(answer),
        attempted_at=now,
        next_at=None,
    )
    if answer.accepted:
        return replace(tried, delivered=True)
    if answer.status == GONE or attempts >= len(RETRY_DELAYS):
        return replace(tried, given_up=True)
    delay = RETRY_DELAYS[attempts] * (1 + JITTER * jitter)
    asked = min(answer.retry_after or timedelta(0), MAX_RETRY_AFTER)
    return replace(tried, next_at=now + max(delay, asked))


def retry_window() -> timedelta:
    """Return how long after its end a prediction's last attempt is made, without jitter."""
    return sum(RETRY_DELAYS, timedelta(0))


def _error(answer: Answer) -> str:
    text = answer.error or f"the receiver answered {answer.status}"
    return public_text(" ".join(text.split()), MAX_ERROR_CHARS)
