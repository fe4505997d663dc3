"""The outbox's part of the store port's contract; see `suite`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta

import pytest

from service.domain.errors import PredictionNotFound
from service.domain.events import Status
from service.domain.webhook import Webhook
from service.domain.webhook_delivery import Answer, Delivery, after_attempt
from service.ports.store import Append, Appended, PredictionStore
from tests.contract.stores.samples import (
    NOW,
    SECOND,
    Writer,
    bounded,
    completed,
    finished,
    outgoing,
    output,
    started,
)

HOUR = timedelta(hours=1)


def told(writer: Writer, body: bytes = b"{}") -> Append:
    """Return the end of a prediction, with the call that tells it."""
    return replace(
        writer.append(completed()), outgoing=outgoing(writer.record.id, body=body, owner=writer.record.owner)
    )


async def ended(store: PredictionStore, prediction_id: str, body: bytes = b"{}", owner: str = "") -> Delivery:
    """End a prediction that has a webhook; return the delivery."""
    writer = await started(store, prediction_id, owner=owner)
    assert await store.append([told(writer, body)]) == (Appended.OK,)
    return outgoing(prediction_id, owner=owner).delivery


def tried(delivery: Delivery, status: int, at_s: int = 0) -> Delivery:
    """Return the delivery after an attempt."""
    return after_attempt(delivery, Answer(status), NOW + at_s * SECOND, 0)


class OutboxContract:
    """The promises of `service.ports.store.WebhookOutbox`."""

    @bounded
    async def test_11_an_outgoing_comes_with_its_append(self, store: PredictionStore) -> None:
        delivery = await ended(store, "p", b"\x00body\xff")
        assert await store.pending(9) == await store.deliveries("p", 9) == (delivery,)
        assert await store.body(delivery.id) == b"\x00body\xff"

    @bounded
    async def test_11_a_refused_append_has_no_outgoing(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        twin = Writer(writer.record)
        successor = Writer(await store.claim("p"))
        assert await store.append([told(writer)]) == (Appended.FENCED,)
        assert await store.append([successor.append(completed(status=Status.CANCELED))]) == (Appended.OK,)
        closed = Writer(replace(twin.record, epoch=successor.record.epoch))
        assert await store.append([told(closed)]) == (Appended.CLOSED,)
        assert await store.pending(9) == await store.deliveries("p", 9) == ()

    @bounded
    async def test_11_a_wrong_append_leaves_no_outgoing_of_its_call(self, store: PredictionStore) -> None:
        good, bad = await started(store, "p1"), await started(store, "p2")
        bad.append(output("skipped"))
        with pytest.raises(ValueError, match="cannot follow"):
            await store.append([told(good), bad.append(completed())])
        assert await store.pending(9) == ()
        assert [record.id for record in await store.unfinished()] == ["p1", "p2"]

    @bounded
    async def test_12_pending_is_due_first_first(self, store: PredictionStore) -> None:
        one, two, three = [await ended(store, name) for name in ("p1", "p2", "p3")]
        later, latest = tried(one, 500, at_s=10), tried(two, 500, at_s=20)
        await store.update(latest)
        await store.update(later)
        assert await store.pending(9) == (three, later, latest)
        assert await store.pending(2) == (three, later)
        with pytest.raises(ValueError, match="at least 1"):
            await store.pending(0)

    @bounded
    async def test_13_the_body_goes_when_it_is_settled(self, store: PredictionStore) -> None:
        done, dead = await ended(store, "p1"), await ended(store, "p2")
        assert await store.body("msg_nobody") is None
        await store.update(tried(done, 204))
        await store.update(tried(dead, 410))
        assert await store.body(done.id) is None and await store.body(dead.id) is None

    @bounded
    async def test_14_update_replaces_all_of_the_state(self, store: PredictionStore) -> None:
        delivery = await ended(store, "p")
        changed = replace(
            delivery,
            attempts=3,
            delivered=True,
            given_up=True,
            last_status=503,
            last_error="ü",
            attempted_at=NOW + SECOND,
            next_at=None,
        )
        await store.update(changed)
        assert await store.deliveries("p", 9) == (changed,)
        await store.update(replace(changed, id="msg_nobody"))
        assert await store.pending(9) == () and len(await store.given_up(9)) == 1

    @bounded
    async def test_15_lists_are_newest_first(self, store: PredictionStore) -> None:
        dead = [tried(await ended(store, name), 410) for name in ("p1", "p2", "p3")]
        for delivery in dead:
            await store.update(delivery)
        await store.update(tried(await ended(store, "p4"), 204))
        assert await store.given_up(9) == tuple(reversed(dead))
        assert await store.given_up(2) == (dead[2], dead[1])
        assert await store.deliveries("p2", 9) == (dead[1],)
        assert await store.deliveries("nobody", 9) == ()

    @bounded
    async def test_15_an_owner_is_given_the_own_ones_alone(self, store: PredictionStore) -> None:
        owners = {"p1": "ann", "p2": "bob", "p3": "ann", "p4": ""}
        for prediction_id, owner in owners.items():
            await store.update(tried(await ended(store, prediction_id, owner=owner), 410))
        for owner, found in (("ann", ["p3", "p1"]), ("bob", ["p2"]), ("eve", []), ("", [*owners][::-1])):
            assert [d.prediction_id for d in await store.given_up(9, owner=owner)] == found
        assert [d.prediction_id for d in await store.given_up(1, owner="bob")] == ["p2"]

    @bounded
    async def test_16_expire_leaves_what_is_not_settled(self, store: PredictionStore) -> None:
        open_one, done = await ended(store, "p1", b"open"), await ended(store, "p2")
        await store.update(tried(done, 200))
        await store.expire(NOW + HOUR, NOW)
        assert len(await store.deliveries("p2", 9)) == 1
        await store.expire(NOW + HOUR, NOW + HOUR)
        assert await store.find("p1") is None
        with pytest.raises(PredictionNotFound):
            await store.read("p1", 0, 9)
        assert await store.pending(9) == (open_one,)
        assert await store.body(open_one.id) == b"open"
        assert await store.deliveries("p2", 9) == ()
        await store.update(tried(open_one, 200))
        await store.expire(NOW + HOUR, NOW + HOUR)
        assert await store.deliveries("p1", 9) == ()

    @bounded
    async def test_16_expire_removes_more_than_a_sweep_can(self, store: PredictionStore) -> None:
        for number in range(40):
            await store.update(tried(await ended(store, f"p{number}"), 200))
        await store.expire(NOW + HOUR, NOW + HOUR)
        assert not [d for n in range(40) for d in await store.deliveries(f"p{n}", 9)]

    @bounded
    async def test_10_the_context_goes_with_the_data(self, store: PredictionStore) -> None:
        await finished(store, "p", webhook=Webhook("https://h.example", (), '{"urls":{}}'))
        await store.expire(NOW + HOUR, NOW)
        record = await store.find("p")
        assert record is not None and record.webhook == Webhook("https://h.example")


class DurableOutboxContract(OutboxContract):
    """The same for stores that outlive their process; `reopen` is `DurableStoreContract`'s."""

    @bounded
    async def test_11_an_outgoing_outlives_the_process(
        self, reopen: Callable[[], AbstractAsyncContextManager[PredictionStore]]
    ) -> None:
        async with reopen() as store:
            delivery = await ended(store, "p", b"body")
            again = tried(delivery, 500)
            await store.update(again)
        async with reopen() as store:
            assert await store.pending(9) == (again,)
            assert await store.body(delivery.id) == b"body"
