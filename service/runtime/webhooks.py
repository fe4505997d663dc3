"""Webhooks: tells receivers of predictions, without any prediction waiting for a receiver.

Calls for `start`, `output` and `logs` come from the live log, are made once and kept nowhere. The
call for `completed` is written with the end itself (`outgoing`), and tried on its schedule until it
is delivered or given up, over restarts too: a receiver gets it at least once, always under the same
id and with the same bytes. It follows all other calls of its prediction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final, TypeVar

import anyio
import structlog
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from service.domain.errors import StoreUnavailable
from service.domain.events import Entry
from service.domain.lifecycle import Prediction
from service.domain.webhook import WebhookEvent, delivery_id, owner_secrets, secret_key
from service.domain.webhook_backlog import Backlog
from service.domain.webhook_delivery import Delivery, Outgoing, after_attempt
from service.domain.webhook_target import host_of
from service.ports.clock import Clock
from service.ports.store import WebhookOutbox
from service.ports.webhooks import WebhookBody, WebhookTransport
from service.runtime.live import LivePrediction
from service.runtime.webhook_caller import Call, CallSlots, WebhookCaller
from service.runtime.webhook_follower import WebhookFollower

log = structlog.get_logger()
T = TypeVar("T")

STORE_RETRY = timedelta(seconds=1)
"""Pause before a store that refused is asked again."""
_WHILE_RUNNING: Final = (WebhookEvent.START, WebhookEvent.OUTPUT, WebhookEvent.LOGS)
FOLLOWED_KEPT = 1024
"""Predictions whose calls can be listed beside the stored ones: those that ended last."""


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How calls are made."""

    secrets: tuple[bytes, ...]
    """What calls are signed with, the current one first; at least one."""
    calls: int = 64
    """Calls under way at a time."""
    calls_per_host: int = 8
    """Of these, for one host."""
    backlog: int = 10_000
    """Unsettled deliveries held in memory; more wait in the store."""


class Webhooks:
    """See the module. `run` must be running while predictions are; used from the event loop alone."""

    def __init__(
        self,
        outbox: WebhookOutbox,
        transport: WebhookTransport,
        body: WebhookBody,
        clock: Clock,
        settings: WebhookSettings,
        jitter: Callable[[], float],
    ) -> None:
        """`jitter` returns numbers from -1 to 1."""
        self._outbox = outbox
        self._body = body
        self._clock = clock
        self._settings = settings
        self._jitter = jitter
        slots = CallSlots(settings.calls, settings.calls_per_host)
        self._caller = WebhookCaller(transport, clock, settings.secrets, slots)
        self._backlog = Backlog(limit=settings.backlog, per_host=settings.calls_per_host)
        self._followers: dict[str, WebhookFollower] = {}
        self._told: OrderedDict[str, tuple[Delivery, ...]] = OrderedDict()
        self._held: dict[str, Delivery] = {}
        """Deliveries that wait for the calls before them, by prediction."""
        self._tasks: TaskGroup | None = None
        self._news = anyio.Event()
        self._idle = anyio.Event()

    def key_of(self, owner: str) -> str:
        """Return the secret that signs an owner's calls now, as receivers are told it; "" for nobody's."""
        return secret_key(owner_secrets(self._settings.secrets, owner)[0])

    # -- what the log writer calls --------------------------------------------------------------

    def outgoing(self, entries: Sequence[Entry], record: Prediction) -> Outgoing | None:
        """Return what is to be stored with an end: the call that tells it, if there is one."""
        webhook = record.webhook
        if webhook is None or not webhook.wants(WebhookEvent.COMPLETED):
            return None
        now = self._clock.now()
        delivery = Delivery(
            id=delivery_id(record.id, WebhookEvent.COMPLETED, record.last_sequence),
            prediction_id=record.id,
            event=WebhookEvent.COMPLETED,
            url=webhook.url,
            created_at=now,
            next_at=now,
            owner=record.owner,
        )
        return Outgoing(delivery, self._body.render(record, entries))

    def published(self, live: LivePrediction, entries: Sequence[Entry], outgoing: Outgoing | None) -> None:
        """Take in what the store now has of a prediction with a webhook. Never blocks."""
        webhook = live.record.webhook
        assert webhook is not None and self._tasks is not None
        follower = self._followers.get(live.id)
        if follower is None and any(webhook.wants(event) for event in _WHILE_RUNNING):
            follower = WebhookFollower(live, webhook, self._caller, self._body, self._clock)
            self._followers[live.id] = follower
            self._tasks.start_soon(self._follow, live.id, follower)
        if follower is not None:
            follower.note(entries)
        if outgoing is None:
            return
        if follower is not None:
            self._held[live.id] = outgoing.delivery
        else:
            self._add(outgoing.delivery)

    def let_go(self, prediction_id: str) -> None:
        """Forget a prediction that another process has taken over."""
        if (follower := self._followers.get(prediction_id)) is not None:
            follower.stop()

    # -- sending --------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Send what an earlier process left, then what comes, until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await self._load()
            while True:
                self._news = anyio.Event()
                if self._backlog.overflowed and self._backlog.has_room:
                    self._backlog.overflowed = False
                    await self._load()
                for host, delivery in self._backlog.take(self._clock.now()):
                    tasks.start_soon(self._deliver, host, delivery)
                with anyio.move_on_after(self._pause_s()):
                    await self._news.wait()

    async def drain(self, limit: timedelta) -> None:
        """Give calls that are due and those under way up to `limit`; what is left comes after a restart."""
        with anyio.move_on_after(limit.total_seconds()):
            while self._followers or self._held or self._backlog.busy:
                self._idle = anyio.Event()
                await self._idle.wait()

    async def _load(self) -> None:
        found = await self._persist(lambda: self._outbox.pending(self._settings.backlog))
        for delivery in found:
            if delivery.prediction_id not in self._held:
                self._backlog.add(delivery, host_of(delivery.url))
        if len(found) == self._settings.backlog:
            self._backlog.overflowed = True

    def _pause_s(self) -> float:
        next_at = self._backlog.next_at()
        if next_at is None:
            return float("inf")
        return max(0.0, (next_at - self._clock.now()).total_seconds())

    def _add(self, delivery: Delivery) -> None:
        self._backlog.add(delivery, host_of(delivery.url))
        self._news.set()

    async def _follow(self, prediction_id: str, follower: WebhookFollower) -> None:
        await follower.run()
        del self._followers[prediction_id]
        if follower.results:
            self._told[prediction_id] = tuple(follower.results)
            if len(self._told) > FOLLOWED_KEPT:
                self._told.popitem(last=False)
        if (delivery := self._held.pop(prediction_id, None)) is not None:
            self._add(delivery)
        self._idle.set()

    async def _deliver(self, host: str, delivery: Delivery) -> None:
        """Make one attempt and write down how it went."""
        body = await self._persist(lambda: self._outbox.body(delivery.id))
        if body is None:  # settled already: the list it came from was older
            after = replace(delivery, next_at=None, delivered=True)
        else:
            call = Call(delivery.id, delivery.prediction_id, delivery.owner, delivery.url, lambda: body)
            answer = await self._caller.call(call)
            after = after_attempt(delivery, answer, self._clock.now(), self._jitter())
            await self._persist(lambda: self._outbox.update(after))
        if after.given_up:
            ids = {"prediction_id": delivery.prediction_id, "webhook_id": delivery.id}
            log.warning("webhook_given_up", **ids, count=after.attempts)
        self._backlog.finished(host, delivery, after)
        self._news.set()
        self._idle.set()

    async def _persist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what the store answers, however long it cannot."""
        while True:
            try:
                return await ask()
            except StoreUnavailable as error:
                log.warning("outbox_unavailable", detail=error.detail)
                await anyio.sleep(STORE_RETRY.total_seconds())

    # -- listing --------------------------------------------------------------------------------

    async def deliveries(self, prediction_id: str, limit: int) -> tuple[Delivery, ...]:
        """Return the calls of one prediction, newest first.

        Those that need not arrive are known to the process that made them, and only for a while. What
        is stored is the end, which is called last, though its call may have been written down before
        an earlier event's was made.
        """
        follower = self._followers.get(prediction_id)
        told = tuple(follower.results) if follower else self._told.get(prediction_id, ())
        stored = await self._outbox.deliveries(prediction_id, limit)
        return (*stored, *reversed(told))[:limit]

    async def given_up(self, limit: int, *, owner: str = "") -> tuple[Delivery, ...]:
        """Return the deliveries that were given up, newest first; with `owner` the owner's alone."""
        return await self._outbox.given_up(limit, owner=owner)
