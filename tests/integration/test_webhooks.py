"""Webhooks over a hand-driven engine and receiver: order, bounds, restarts, stores that fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from service.adapters.stores.memory import MemoryStore
from service.adapters.stores.sqlite import SqliteStore
from service.adapters.system_clock import SystemClock
from service.adapters.webhook_body import ReplicateBody
from service.domain.errors import InvalidRequest, StoreUnavailable
from service.domain.events import Log
from service.domain.webhook import Webhook, WebhookEvent
from service.domain.webhook_delivery import RETRY_DELAYS, Answer, Delivery
from service.ports.store import PredictionStore
from service.runtime.webhooks import Webhooks, WebhookSettings
from tests.support.fake_transport import FakeTransport
from tests.support.runtime import Runtime, new, running

pytestmark = pytest.mark.anyio

START, OUTPUT, LOGS, COMPLETED = WebhookEvent
SETTINGS = WebhookSettings((b"s" * 32,))
HOOK = "https://h.example/hook"
BOUND_S = 20


class MovableClock(SystemClock):
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


class World:
    """A runtime with webhooks, and what drives them."""

    def __init__(self, store: PredictionStore, settings: WebhookSettings) -> None:
        self.store = store
        self.clock = MovableClock()
        self.transport = FakeTransport()
        self.webhooks = Webhooks(store, self.transport, ReplicateBody(), self.clock, settings, lambda: 0.0)
        self.runtime: Runtime

    async def create(self, *events: WebhookEvent, url: str = HOOK) -> str:
        created = await self.runtime.predictions.create(new(webhook=Webhook(url, events)))
        return created.prediction.id

    async def run_one(self, nth: int, *texts: str) -> None:
        """Let the nth job put out and end."""
        job = await self.runtime.host.next_job(nth)
        self.runtime.host.put_out(job, *texts)
        self.runtime.host.end(job, output_tokens=len(texts))

    async def settled(self, prediction_id: str) -> Delivery:
        """Return the delivery of the end once it is settled."""
        while True:
            for delivery in await self.store.deliveries(prediction_id, 9):
                if delivery.settled:
                    return delivery
            await anyio.wait_all_tasks_blocked()

    def move(self, span: timedelta) -> None:
        """Let time pass for the schedule."""
        self.clock.ahead += span
        self.webhooks._news.set()


@asynccontextmanager
async def world(
    store: PredictionStore | None = None, settings: WebhookSettings = SETTINGS
) -> AsyncGenerator[World, None]:
    made = World(store or MemoryStore(), settings)
    with anyio.fail_after(BOUND_S):
        async with running(made.store, webhooks=made.webhooks) as made.runtime:
            yield made


async def test_the_end_is_told_with_what_get_shows() -> None:
    async with world() as w:
        prediction_id = await w.create(COMPLETED)
        await w.run_one(1, "Hel", "lo")
        (sent,) = await w.transport.until(1)
        assert (sent.event, sent.body["status"]) == ("completed", "succeeded")
        assert "".join(sent.body["output"]) == "Hello"
        delivery = await w.settled(prediction_id)
        assert (delivery.delivered, delivery.attempts, delivery.id) == (True, 1, sent.id)
        assert await w.store.body(delivery.id) is None


async def test_a_prediction_without_a_webhook_makes_no_call() -> None:
    async with world() as w:
        await w.runtime.predictions.create(new())
        await w.run_one(1, "a")
        while not w.store._logs or await w.store.unfinished():  # type: ignore[attr-defined]  # MemoryStore
            await anyio.wait_all_tasks_blocked()
        assert w.transport.sent == [] and w.webhooks._followers == {}


async def test_completed_waits_for_a_start_that_is_not_answered() -> None:
    async with world() as w:
        w.transport.hanging.add("h.example")
        prediction_id = await w.create()
        await w.run_one(1, "a", "b")
        await w.transport.until(1)
        record = await w.runtime.predictions.get(prediction_id, timedelta(seconds=5))
        assert record.status.terminal, "the receiver holds up no prediction"
        await anyio.wait_all_tasks_blocked()
        assert [sent.event for sent in w.transport.sent] == ["start"]
        assert (w.transport.sent[0].body["status"], w.transport.sent[0].body["completed_at"]) == (
            "processing",
            None,
        )
        w.transport.release("h.example")
        await w.settled(prediction_id)
        assert [sent.event for sent in w.transport.sent] == ["start", "completed"]


async def test_log_lines_are_told() -> None:
    async with world() as w:
        prediction_id = await w.create(LOGS)
        job = await w.runtime.host.next_job()
        live = w.runtime.predictions._live[prediction_id]
        live.stage(Log("a line"), w.clock.now())
        w.runtime.predictions.writer.notice(live)
        (sent,) = await w.transport.until(1)
        assert (sent.event, sent.body["logs"]) == ("logs", "a line")
        w.runtime.host.end(job)


async def test_failed_attempts_follow_the_schedule_and_are_listed_when_given_up() -> None:
    async with world() as w:
        w.transport.answers = [Answer(500)] * len(RETRY_DELAYS)
        prediction_id = await w.create(COMPLETED)
        await w.run_one(1, "a")
        for number, delay in enumerate((*RETRY_DELAYS[1:], timedelta(0)), 1):
            await w.transport.until(number)
            await anyio.wait_all_tasks_blocked()
            w.move(delay - timedelta(seconds=2))
            await anyio.wait_all_tasks_blocked()
            assert len(w.transport.sent) == number
            w.move(timedelta(seconds=3))
        dead = await w.settled(prediction_id)
        assert dead.given_up and await w.webhooks.given_up(9) == (dead,)
        assert (
            len({sent.id for sent in w.transport.sent}) == len({sent.raw for sent in w.transport.sent}) == 1
        )


async def test_a_dead_host_holds_up_its_own_calls_only_and_eight_at_a_time() -> None:
    async with world() as w:
        w.transport.hanging.add("dead.example")
        for number in range(20):
            await w.create(COMPLETED, url="https://dead.example/")
            await w.run_one(number + 1, "a")
        last = await w.create(COMPLETED)
        await w.run_one(21, "a")
        assert (await w.settled(last)).delivered
        assert w.transport.peak == {"dead.example": SETTINGS.calls_per_host, "h.example": 1}
        w.transport.release("dead.example")
        await w.transport.until(21)


async def test_what_an_earlier_process_left_is_sent_after_a_restart(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "store.db") as store:
        async with world(store) as w:
            w.transport.hanging.add("h.example")
            prediction_id = await w.create(COMPLETED)
            await w.run_one(1, "a")
            (before,) = await w.transport.until(1)
        async with world(store) as w:
            (again,) = await w.transport.until(1)
            assert (again.id, again.raw) == (before.id, before.raw)
            assert (await w.settled(prediction_id)).attempts == 1


async def test_an_unfinished_prediction_ends_in_one_call_after_a_restart() -> None:
    store = MemoryStore()
    async with world(store) as w:
        prediction_id = await w.create(START, COMPLETED)
        w.runtime.host.put_out(await w.runtime.host.next_job(), "a")
        await w.transport.until(1)
    async with world(store) as w:
        await w.run_one(1, "b")
        await w.settled(prediction_id)
        assert [sent.event for sent in w.transport.sent] == ["completed"], "start is not told twice"
        assert "".join(w.transport.sent[0].body["output"]) == "ab"


class FailingStore(MemoryStore):
    """Refuses the first writes of the outbox."""

    refusals = 2

    async def update(self, delivery: Delivery) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("full")
        await super().update(delivery)


async def test_a_store_that_fails_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runtime.webhooks.STORE_RETRY", timedelta(milliseconds=1))
    store = FailingStore()
    async with world(store) as w:
        prediction_id = await w.create(COMPLETED)
        await w.run_one(1, "a")
        assert (await w.settled(prediction_id)).delivered
        assert store.refusals == 0 and len(w.transport.sent) == 1


async def test_more_than_the_backlog_holds_is_sent_all_the_same() -> None:
    async with world(settings=replace(SETTINGS, backlog=3)) as w:
        w.transport.hanging.add("h.example")
        ids = []
        for number in range(9):
            ids.append(await w.create(COMPLETED))
            await w.run_one(number + 1, "a")
            await w.runtime.predictions.get(ids[-1], timedelta(seconds=5))
        w.transport.release("h.example")
        for prediction_id in ids:
            assert (await w.settled(prediction_id)).delivered
        assert len({sent.id for sent in w.transport.sent}) == len(w.transport.sent) == 9


async def test_a_prediction_taken_over_by_another_process_is_let_go() -> None:
    async with world() as w:
        prediction_id = await w.create()
        job = await w.runtime.host.next_job()
        w.runtime.host.put_out(job, "a")
        await w.transport.until(1)
        await w.store.claim(prediction_id)
        w.runtime.host.put_out(job, "b")
        while w.webhooks._followers:
            await anyio.lowlevel.checkpoint()
        assert all(sent.event != "completed" for sent in w.transport.sent)
        assert await w.store.pending(9) == ()


async def test_drain_is_quick_without_calls_and_bounded_with_them() -> None:
    async with world() as w:
        await w.webhooks.drain(timedelta(seconds=9))
        w.transport.hanging.add("h.example")
        await w.create(COMPLETED)
        await w.run_one(1, "a")
        await w.transport.until(1)
        await w.webhooks.drain(timedelta(milliseconds=20))
        w.transport.release("h.example")
        await w.webhooks.drain(timedelta(seconds=9))
        assert w.transport.running == {"h.example": 0}


async def test_calls_are_listed_newest_first_with_those_that_need_not_arrive() -> None:
    async with world() as w:
        w.transport.answers = [Answer(500)]
        prediction_id = await w.create(START, COMPLETED)
        await w.run_one(1, "a")
        await w.settled(prediction_id)
        completed, start = await w.webhooks.deliveries(prediction_id, 9)
        assert (completed.event, completed.delivered, start.event) == (COMPLETED, True, START)
        assert (start.attempts, start.given_up, start.next_at, start.last_status) == (1, True, None, 500)
        assert len(await w.webhooks.deliveries(prediction_id, 1)) == 1
        assert await w.webhooks.given_up(9) == (), "only what had to arrive is a dead letter"


async def test_the_end_is_listed_first_though_it_was_written_down_before_the_start_was_called() -> None:
    async with world() as w:
        prediction_id = await w.create(START, COMPLETED)
        told_while_running = w.webhooks._told
        await w.run_one(1, "a")
        await w.settled(prediction_id)
        (start,) = told_while_running[prediction_id]
        late = replace(start, created_at=start.created_at + timedelta(days=1))
        told_while_running[prediction_id] = (late,)
        listed = await w.webhooks.deliveries(prediction_id, 9)
        assert [delivery.event for delivery in listed] == [COMPLETED, START]
        assert await w.webhooks.deliveries(prediction_id, 1) == listed[:1]


@pytest.mark.parametrize(
    "url", ["", "http://h.example/", "https://127.0.0.1/", "https://u@h.example/", "nonsense"]
)
async def test_a_url_that_may_not_be_called_refuses_the_create(url: str) -> None:
    async with world() as w:
        with pytest.raises(InvalidRequest) as caught:
            await w.create(url=url)
        assert [violation.field for violation in caught.value.violations] == ["webhook.url"]
        assert await w.store.unfinished() == ()


async def test_an_equal_create_is_the_same_whatever_its_context_says() -> None:
    async with world() as w:
        asked = new(webhook=Webhook(HOOK, (START,), '{"a":1}'), request_id="r")
        first = await w.runtime.predictions.create(asked)
        again = await w.runtime.predictions.create(replace(asked, webhook=Webhook(HOOK, (START,), "{}")))
        assert again.prediction.id == first.prediction.id and not again.fresh
