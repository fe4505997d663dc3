"""Follows one live prediction for its webhook: every call but the last. Nothing here outlives it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import anyio

from service.domain.events import Entry, Started, Status, Usage
from service.domain.lifecycle import Prediction
from service.domain.webhook import Webhook, WebhookEvent, delivery_id
from service.domain.webhook_calls import AskAgain, CallNow, Idle, Over, WebhookCalls
from service.domain.webhook_delivery import Delivery, after_attempt
from service.ports.clock import Clock
from service.ports.webhooks import WebhookBody
from service.runtime.live import LivePrediction
from service.runtime.webhook_caller import Call, WebhookCaller

RESULTS_KEPT = 32
"""Calls of one prediction whose outcome can be listed: the latest."""


class WebhookFollower:
    """See the module. `note` from the event loop; `run` in a task of its own."""

    def __init__(
        self, live: LivePrediction, webhook: Webhook, caller: WebhookCaller, body: WebhookBody, clock: Clock
    ) -> None:
        self._live = live
        self._webhook = webhook
        self._calls = WebhookCalls(webhook)
        self._caller = caller
        self._body = body
        self._clock = clock
        self._news = anyio.Event()
        self._start: tuple[int, bytes] | None = None
        self.results: deque[Delivery] = deque(maxlen=RESULTS_KEPT)

    def note(self, entries: Sequence[Entry]) -> None:
        """Take in what was published."""
        for entry in entries:
            self._calls.note(entry)
            if isinstance(entry.event, Started) and self._webhook.wants(WebhookEvent.START):
                self._start = entry.sequence, self._body_at_start(entry.event)
        self._news.set()

    def stop(self) -> None:
        """Let go of a prediction that another process has taken over."""
        self._calls.end()
        self._news.set()

    async def run(self) -> None:
        """Make its calls until it has ended and all is told."""
        while True:
            due = self._calls.next(self._clock.monotonic())
            match due:
                case CallNow(event):
                    await self._call(event)
                    self._calls.finished()
                case AskAgain(at_s):
                    with anyio.move_on_after(at_s - self._clock.monotonic()):
                        await self._wait()
                case Idle():
                    await self._wait()
                case Over():
                    return

    async def _wait(self) -> None:
        await self._news.wait()
        self._news = anyio.Event()

    async def _call(self, event: WebhookEvent) -> None:
        live = self._live
        if event is WebhookEvent.START and self._start is not None:
            sequence, told = self._start
            body: Callable[[], bytes] = partial(_same, told)
        else:
            sequence, body = live.record.last_sequence, self._body_now
        now = self._clock.now()
        call = Call(
            delivery_id(live.id, event, sequence), live.id, live.record.owner, self._webhook.url, body
        )
        answer = await self._caller.call(call)
        made = Delivery(call.id, live.id, event, call.url, created_at=now, next_at=now, owner=call.owner)
        tried = after_attempt(made, answer, self._clock.now(), 0)
        # Told once, whether it arrives or not.
        self.results.append(replace(tried, next_at=None, given_up=not tried.delivered))

    def _body_now(self) -> bytes:
        return self._body.render(self._live.record, self._live.entries)

    def _body_at_start(self, event: Started) -> bytes:
        """Return the body as it was when it started: by now more may have happened."""
        return self._body.render(_as_started(self._live.record, event), ())


def _as_started(record: Prediction, event: Started) -> Prediction:
    return replace(
        record,
        status=Status.PROCESSING,
        first_output_at=None,
        completed_at=None,
        finish_reason=None,
        matched_stop=None,
        usage=Usage(input_tokens=event.input_tokens),
        error="",
    )


def _same(told: bytes) -> bytes:
    return told
