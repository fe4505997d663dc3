"""Which call of one prediction's webhook is due, and when: the throttle.

Rules (`contract/replicate.md` §4): one call at a time; `start` once and at once; `output` and `logs`
at most one each in 500 ms, coalesced, so that the last state is always told; `completed` after all
others. The call of `completed` itself is the outbox's: here it ends the calls before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.domain.events import Completed, Entry, Log, Output, Started
from service.domain.webhook import Webhook, WebhookEvent

INTERVAL_S = 0.5
"""Between the beginnings of two calls for the same event; Replicate's."""
_THROTTLED = (WebhookEvent.OUTPUT, WebhookEvent.LOGS)


@dataclass(frozen=True, slots=True)
class CallNow:
    """Make this call, then say `finished`."""

    event: WebhookEvent


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Nothing before this moment, unless something is noted."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing until something is noted, or the call under way is finished."""


@dataclass(frozen=True, slots=True)
class Over:
    """No call follows."""


Due = CallNow | AskAgain | Idle | Over


class WebhookCalls:
    """One prediction's calls but the last. Times are seconds of any clock that never steps back."""

    def __init__(self, webhook: Webhook) -> None:
        self._webhook = webhook
        self._pending: set[WebhookEvent] = set()
        self._called_at_s: dict[WebhookEvent, float] = {}
        self._calling = False
        self._ended = False

    def note(self, entry: Entry) -> None:
        """Take in what was logged."""
        match entry.event:
            case Started():
                self._add(WebhookEvent.START)
            case Output(text=text) if text:
                self._add(WebhookEvent.OUTPUT)
            case Log():
                self._add(WebhookEvent.LOGS)
            case Completed():
                self.end()
            case _:
                pass

    def end(self) -> None:
        """Take in that the prediction has ended. If a call tells its end, that one tells all."""
        self._ended = True
        if self._webhook.wants(WebhookEvent.COMPLETED):
            self._pending.difference_update(_THROTTLED)

    def next(self, now_s: float) -> Due:
        """Return what is to be done. A call that is returned is under way until `finished`."""
        if self._calling:
            return Idle()
        if WebhookEvent.START in self._pending:
            return self._call(WebhookEvent.START, now_s)
        due = [(self._due_s(event), event) for event in _THROTTLED if event in self._pending]
        if not due:
            return Over() if self._ended else Idle()
        at_s, event = min(due, key=lambda item: item[0])
        return self._call(event, now_s) if at_s <= now_s else AskAgain(at_s)

    def finished(self) -> None:
        """Say that the call under way is over, however it went."""
        self._calling = False

    def _add(self, event: WebhookEvent) -> None:
        if self._webhook.wants(event):
            self._pending.add(event)

    def _call(self, event: WebhookEvent, now_s: float) -> CallNow:
        self._pending.discard(event)
        self._called_at_s[event] = now_s
        self._calling = True
        return CallNow(event)

    def _due_s(self, event: WebhookEvent) -> float:
        last_s = self._called_at_s.get(event)
        return float("-inf") if last_s is None else last_s + INTERVAL_S
