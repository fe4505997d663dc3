"""The store port's contract: a test a promise (its number is in the name), the same for every adapter.

A subclass gives the fixtures that raise NotImplementedError here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import fields, replace
from datetime import timedelta

import anyio
import pytest

from service.domain.errors import CursorExpired, IdConflict, InvalidRequest, PredictionNotFound
from service.domain.events import Completed, Entry, FinishReason, Log, Started, Status, Usage
from service.ports.store import Append, Appended, Created, PredictionStore
from tests.contract.stores.samples import (
    HASH,
    NOW,
    OTHER_HASH,
    SECOND,
    Writer,
    bounded,
    completed,
    finished,
    new,
    output,
    started,
)

HOUR = timedelta(hours=1)
Opener = Callable[[], AbstractAsyncContextManager[PredictionStore]]


class StoreContract:
    """The promises of `service.ports.store.PredictionStore`."""

    @pytest.fixture
    async def store(self) -> PredictionStore:
        """Return an open, empty store."""
        raise NotImplementedError

    @bounded
    async def test_2_create_writes_record_and_accepted_together(self, store: PredictionStore) -> None:
        prediction, accepted = new(
            "p", labels=(("a", "1"), ("b", "ü")), attached=True, deadline=NOW + HOUR, request_id="r"
        )
        assert await store.create(prediction, accepted, HASH) == Created(prediction, fresh=True)
        assert await store.find("p") == prediction
        assert await store.read("p", 0, 10) == (accepted,)

    @bounded
    async def test_2_an_equal_create_returns_the_earlier_prediction(self, store: PredictionStore) -> None:
        writer = await started(store, "p1", request_id="r")
        again = await store.create(*new("p2", NOW + HOUR, request_id="r"), HASH)
        assert again == Created(writer.record, fresh=False)
        assert await store.find("p2") is None

    @bounded
    async def test_2_another_body_conflicts_and_changes_nothing(self, store: PredictionStore) -> None:
        await store.create(*new("p1", request_id="r"), HASH)
        with pytest.raises(IdConflict):
            await store.create(*new("p2", request_id="r"), OTHER_HASH)
        assert await store.find("p2") is None
        assert not (await store.create(*new("p2", request_id="r"), HASH)).fresh

    @bounded
    async def test_2_no_request_id_never_repeats(self, store: PredictionStore) -> None:
        assert (await store.create(*new("p1"), HASH)).fresh
        assert (await store.create(*new("p2"), HASH)).fresh

    @bounded
    async def test_2_a_hundred_racing_equal_creates_make_one(self, store: PredictionStore) -> None:
        answers: list[Created] = []

        async def create(number: int) -> None:
            answers.append(await store.create(*new(f"p{number}", request_id="r"), HASH))

        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(create, number)
        assert [answer.fresh for answer in answers].count(True) == 1
        (winner,) = {answer.prediction.id for answer in answers}
        assert [record.id for record in await store.unfinished()] == [winner]

    @bounded
    async def test_2_a_request_id_lives_24_hours(self, store: PredictionStore) -> None:
        day = timedelta(hours=24)
        await store.create(*new("p1", request_id="r"), HASH)
        last_moment = NOW + day - timedelta(microseconds=1)
        assert not (await store.create(*new("p2", last_moment, request_id="r"), HASH)).fresh
        assert (await store.create(*new("p3", NOW + day, request_id="r"), OTHER_HASH)).fresh
        again = await store.create(*new("p4", NOW + day + HOUR, request_id="r"), OTHER_HASH)
        assert (again.prediction.id, again.fresh) == ("p3", False)

    @bounded
    async def test_2_a_request_id_outlives_the_data_not_the_record(self, store: PredictionStore) -> None:
        await finished(store, "p1", request_id="r")
        await store.expire(NOW + SECOND, NOW)
        again = await store.create(*new("p2", NOW + HOUR, request_id="r"), HASH)
        assert (again.prediction.id, again.prediction.data_removed, again.fresh) == ("p1", True, False)
        await store.expire(NOW + SECOND, NOW + SECOND)
        assert (await store.create(*new("p3", NOW + HOUR, request_id="r"), HASH)).fresh

    @bounded
    async def test_2_a_taken_id_or_a_wrong_beginning_is_a_bug(self, store: PredictionStore) -> None:
        prediction, accepted = new("p")
        await store.create(prediction, accepted, HASH)
        other, _ = new("q")
        for record, first in [
            (prediction, accepted),
            (other, Entry(2, accepted.event)),
            (other, Entry(1, Log("x"))),
            (replace(other, last_sequence=0), accepted),
        ]:
            with pytest.raises(ValueError):
                await store.create(record, first, HASH)
        assert await store.find("q") is None
        assert await store.read("p", 0, 10) == (accepted,)

    @bounded
    async def test_3_claim_raises_the_epoch_by_one(self, store: PredictionStore) -> None:
        prediction, accepted = new("p")
        await store.create(prediction, accepted, HASH)
        assert await store.claim("p") == replace(prediction, epoch=1)
        assert await store.claim("p") == replace(prediction, epoch=2)
        assert await store.find("p") == replace(prediction, epoch=2)

    @bounded
    async def test_3_claim_of_an_unknown_prediction(self, store: PredictionStore) -> None:
        with pytest.raises(PredictionNotFound):
            await store.claim("nobody")

    @bounded
    async def test_4_append_moves_log_and_record_together(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        append = writer.append(output("Hel"), Log("a line"), output("lo"))
        assert await store.append([append]) == (Appended.OK,)
        assert await store.find("p") == writer.record
        assert (await store.read("p", 2, 10)) == append.entries
        end = writer.append(
            Completed(NOW, Status.FAILED, FinishReason.ERROR, matched_stop=7, error="it broke")
        )
        assert await store.append([end]) == (Appended.OK,)
        assert await store.find("p") == writer.record

    @bounded
    async def test_4_every_field_of_the_record_is_kept(self, store: PredictionStore) -> None:
        writer = await started(
            store,
            "p",
            attached=True,
            request_id="r",
            deadline=NOW + HOUR,
            labels=(("dialect", "openai"), ("input", "{}")),
        )
        end = Completed(NOW + SECOND, Status.FAILED, FinishReason.ERROR, Usage(1, 2, 3), "stop", "it broke")
        await store.append([writer.append(output("x"), end)])
        for field in fields(writer.record):
            if field.name != "data_removed":
                assert getattr(writer.record, field.name) != field.default, "a field this test leaves out"
        assert await store.find("p") == writer.record

    @bounded
    async def test_4_an_old_epoch_is_fenced(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        successor = Writer(await store.claim("p"))
        assert await store.append([writer.append(output("late"))]) == (Appended.FENCED,)
        assert await store.append([successor.append(output("mine"))]) == (Appended.OK,)
        future = Writer(replace(successor.record, epoch=9))
        assert await store.append([future.append(output("early"))]) == (Appended.FENCED,)
        assert [entry.event for entry in await store.read("p", 2, 10)] == [output("mine")]
        assert await store.find("p") == successor.record

    @bounded
    async def test_4_a_completed_log_is_closed(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        before, twin = writer.record, Writer(writer.record)
        await store.append([writer.append(completed())])
        assert await store.append([twin.append(completed(status=Status.CANCELED))]) == (Appended.CLOSED,)
        assert await store.find("p") == writer.record
        await store.claim("p")
        successor = Writer(replace(before, epoch=2))
        assert await store.append([successor.append(output("x"))]) == (Appended.CLOSED,)
        assert len(await store.read("p", 0, 10)) == 3

    @bounded
    async def test_4_a_log_that_is_gone_is_closed(self, store: PredictionStore) -> None:
        stranger = Writer(new("nobody")[0])
        assert await store.append([stranger.append(Started(NOW))]) == (Appended.CLOSED,)
        assert await store.find("nobody") is None

    @bounded
    async def test_4_a_refused_append_does_not_hinder_the_others(self, store: PredictionStore) -> None:
        writers = [await started(store, f"p{number}") for number in range(9)]
        for number in range(0, 9, 3):
            await store.claim(f"p{number}")
        twins = [Writer(writer.record) for writer in writers]
        await store.append([writers[number].append(completed()) for number in range(1, 9, 3)])
        for step in range(3):
            answers = await store.append([twin.append(output(f"{step}")) for twin in twins])
            assert answers == (Appended.FENCED, Appended.CLOSED, Appended.OK) * 3
        for number in range(9):
            log = await store.read(f"p{number}", 2, 10)
            assert len(log) == (0, 1, 3)[number % 3]
        assert [await store.find(f"p{n}") for n in range(2, 9, 3)] == [
            twins[n].record for n in range(2, 9, 3)
        ]

    @bounded
    async def test_4_appends_of_one_log_in_one_call_follow_each_other(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        twin = Writer(writer.record)
        appends = [writer.append(output("a")), writer.append(output("b")), writer.append(completed())]
        late = [twin.append(output("c"))]
        answers = await store.append([*appends, *late])
        assert answers == (Appended.OK, Appended.OK, Appended.OK, Appended.CLOSED)
        assert await store.find("p") == writer.record
        assert [entry.sequence for entry in await store.read("p", 0, 10)] == [1, 2, 3, 4, 5]

    @bounded
    async def test_4_nothing_to_append_changes_nothing(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        await store.claim("p")
        assert await store.append([]) == ()
        assert await store.append([writer.append()]) == (Appended.FENCED,)
        writer = Writer(replace(writer.record, epoch=2))
        assert await store.append([writer.append()]) == (Appended.OK,)
        assert await store.find("p") == writer.record

    @bounded
    async def test_4_a_repeat_or_a_gap_is_a_bug_and_changes_nothing(self, store: PredictionStore) -> None:
        writer, other = await started(store, "p"), await started(store, "q")
        before = await store.find("p"), await store.find("q")
        sound = other.append(output("x"))
        repeat = Append("p", 1, (Entry(2, output("x")),), replace(writer.record, last_sequence=2))
        gap = Append("p", 1, (Entry(4, output("x")),), replace(writer.record, last_sequence=4))
        inner = Append(
            "p", 1, (Entry(3, output("x")), Entry(5, output("y"))), replace(writer.record, last_sequence=5)
        )
        misled = Append("p", 1, (Entry(3, output("x")),), replace(writer.record, last_sequence=7))
        foreign = Append("p", 1, (Entry(3, output("x")),), replace(other.record, last_sequence=3))
        end = Writer(writer.record).append(completed())
        undead = Append("p", 1, (*end.entries, Entry(4, Log("x"))), replace(end.record, last_sequence=4))
        for wrong in (repeat, gap, inner, misled, foreign, undead):
            with pytest.raises(ValueError):
                await store.append([sound, wrong])
        assert (await store.find("p"), await store.find("q")) == before
        assert await store.append([sound, writer.append(output("y"))]) == (Appended.OK, Appended.OK)

    @bounded
    async def test_4_racing_writers_leave_a_log_without_a_hole(self, store: PredictionStore) -> None:
        writers = [await started(store, f"p{number}") for number in range(20)]

        async def write(own: list[Writer]) -> None:
            for step in range(10):
                await store.append([writer.append(output(str(step)), output("+")) for writer in own])

        async with anyio.create_task_group() as tasks:
            for start in range(5):
                tasks.start_soon(write, writers[start::5])
        for writer in writers:
            log = await store.read(writer.record.id, 0, 100)
            assert [entry.sequence for entry in log] == list(range(1, 23))
            assert await store.find(writer.record.id) == writer.record

    @bounded
    async def test_5_read_is_ascending_and_limited(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        await store.append([writer.append(*[output(str(number)) for number in range(20)])])
        log = await store.read("p", 0, 100)
        assert [entry.sequence for entry in log] == list(range(1, 23))
        assert await store.read("p", 5, 7) == log[5:12]
        assert await store.read("p", 21, 7) == log[21:]
        assert await store.read("p", 22, 7) == ()
        assert await store.read("p", 2**70, 2**70) == ()
        for wrong in (0, -1):
            with pytest.raises(ValueError):
                await store.read("p", 0, wrong)

    @bounded
    async def test_5_read_of_an_unknown_or_removed_log(self, store: PredictionStore) -> None:
        with pytest.raises(PredictionNotFound):
            await store.read("nobody", 0, 10)
        await finished(store, "p")
        await store.expire(NOW + SECOND, NOW)
        for after in (0, 4):
            with pytest.raises(CursorExpired):
                await store.read("p", after, 10)

    @bounded
    async def test_7_find_returns_the_latest_record_or_none(self, store: PredictionStore) -> None:
        assert await store.find("p") is None
        writer = await started(store, "p")
        assert await store.find("p") == writer.record
        await store.append([writer.append(output("x"))])
        assert await store.find("p") == writer.record

    @bounded
    async def test_8_list_is_newest_first_with_ties_by_id(self, store: PredictionStore) -> None:
        moments = {"b": 1, "c": 1, "a": 1, "é": 1, "d": 3, "e": 2, "z": 0}
        for name, second in moments.items():
            await store.create(*new(name, NOW + second * SECOND), HASH)
        for limit in range(1, 9):
            names, token = [], ""
            while True:
                page = await store.list(limit=limit, token=token)
                assert 0 < len(page.predictions) <= limit
                names += [record.id for record in page.predictions]
                token = page.next_token
                if not token:
                    break
            assert names == ["d", "e", "é", "c", "b", "a", "z"]

    @bounded
    async def test_8_each_is_listed_once_while_others_are_created(self, store: PredictionStore) -> None:
        for number in range(20):
            await store.create(*new(f"old{number:02}", NOW + number // 3 * SECOND), HASH)
        names, token = [], ""
        for turn in range(100):
            page = await store.list(limit=3, token=token)
            names += [record.id for record in page.predictions]
            token = page.next_token
            if not token:
                break
            for second in (0, 3, 100):
                await store.create(*new(f"new{turn}-{second}", NOW + second * SECOND), HASH)
        assert len(names) == len(set(names))
        assert sorted(name for name in names if name.startswith("old")) == [f"old{n:02}" for n in range(20)]

    @bounded
    async def test_8_list_between_exclusive_bounds(self, store: PredictionStore) -> None:
        for number in range(6):
            await store.create(*new(f"p{number}", NOW + number * SECOND), HASH)
        after, before = NOW + SECOND, NOW + 4 * SECOND
        page = await store.list(limit=1, created_after=after, created_before=before)
        assert [record.id for record in page.predictions] == ["p3"]
        page = await store.list(limit=1, token=page.next_token, created_after=after, created_before=before)
        assert ([record.id for record in page.predictions], page.next_token) == (["p2"], "")
        assert (await store.list(limit=5, created_after=NOW + 5 * SECOND)).predictions == ()

    @bounded
    async def test_8_an_unreadable_token_is_refused(self, store: PredictionStore) -> None:
        for number in range(3):
            await store.create(*new(f"p{number}", NOW), HASH)
        token = (await store.list(limit=1)).next_token
        assert token.isascii()
        for wrong in ("x", "%%%", token[:-1], token[:5] + "A" + token[6:], token + "A", "ü", "A" * 5000):
            with pytest.raises(InvalidRequest) as refused:
                await store.list(limit=1, token=wrong)
            assert [violation.field for violation in refused.value.violations] == ["page_token"]
        with pytest.raises(ValueError):
            await store.list(limit=0)

    @bounded
    async def test_9_unfinished_is_oldest_first(self, store: PredictionStore) -> None:
        for name, second in {"d": 2, "b": 1, "a": 1, "c": 0}.items():
            await started(store, name, NOW + second * SECOND)
        await finished(store, "z", NOW)
        assert [record.id for record in await store.unfinished()] == ["c", "a", "b", "d"]

    @bounded
    async def test_10_expire_removes_data_then_records(self, store: PredictionStore) -> None:
        old = await finished(store, "old", NOW, labels=(("k", "v"),))
        middle = await finished(store, "middle", NOW + HOUR)
        fresh = await finished(store, "fresh", NOW + 2 * HOUR)
        running = await started(store, "running", NOW)
        assert await store.expire(NOW, NOW) == 0
        assert await store.expire(NOW + 2 * HOUR, NOW) == 2
        assert await store.expire(NOW + 2 * HOUR, NOW) == 0
        for writer in (old, middle):
            bare = replace(writer.record, request=None, data_removed=True)
            assert await store.find(writer.record.id) == bare
        assert await store.find("fresh") == fresh.record
        assert await store.expire(NOW + 2 * HOUR, NOW + HOUR) == 0
        assert await store.find("old") is None
        with pytest.raises(PredictionNotFound):
            await store.read("old", 0, 1)
        assert [record.id for record in (await store.list(limit=9)).predictions] == [
            "fresh",
            "middle",
            "running",
        ]
        assert await store.unfinished() == (running.record,)
        assert len(await store.read("fresh", 0, 10)) == fresh.record.last_sequence

    @bounded
    async def test_10_a_whole_record_that_goes_counts_if_it_had_data(self, store: PredictionStore) -> None:
        for number in range(40):
            await finished(store, f"p{number}", NOW + number * SECOND)
        assert await store.expire(NOW + 10 * SECOND, NOW) == 10
        assert await store.expire(NOW + 5 * SECOND, NOW + 35 * SECOND) == 25
        assert len((await store.list(limit=100)).predictions) == 5

    @bounded
    async def test_10_an_expired_log_stays_closed(self, store: PredictionStore) -> None:
        writer = await started(store, "p")
        twin = Writer(writer.record)
        await store.append([writer.append(completed())])
        await store.expire(NOW + SECOND, NOW)
        assert await store.append([twin.append(output("x"))]) == (Appended.CLOSED,)
        assert (await store.claim("p")).data_removed


class DurableStoreContract(StoreContract):
    """All promises, the first one included: for stores that outlive their process."""

    @pytest.fixture
    def reopen(self) -> Opener:
        """Return what opens the same store once more, with nothing but what is durable."""
        raise NotImplementedError

    @bounded
    async def test_1_what_returned_is_there_after_reopening(self, reopen: Opener) -> None:
        async with reopen() as store:
            done = await finished(store, "p1", request_id="r1", labels=(("dialect", "replicate"),))
            open_one = await started(store, "p2", deadline=NOW + HOUR)
            log = await store.read("p1", 0, 100)
        async with reopen() as store:
            assert await store.find("p1") == done.record
            assert await store.read("p1", 0, 100) == log
            assert await store.unfinished() == (open_one.record,)
            assert await store.append([open_one.append(output("on"))]) == (Appended.OK,)
            prediction, accepted = new("p3", request_id="r1")
            assert await store.create(prediction, accepted, HASH) == Created(done.record, fresh=False)
