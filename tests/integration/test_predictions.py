"""Predictions over a hand-driven engine host: races, queueing, loss of the engine, readers."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import anyio
import pytest

from service.adapters.stores.memory import MemoryStore
from service.domain.chat import ChatMessage, ChatPrompt, ForcedTool, Tool
from service.domain.errors import (
    ContextExceeded,
    Draining,
    IdConflict,
    InvalidRequest,
    ModelNotFound,
    PredictionNotFound,
    QueueFull,
    TooManyReaders,
)
from service.domain.events import FinishReason, Started, Status
from service.domain.request import GenerationRequest
from service.ports.engine import EndReason
from service.runtime.creation import NewPrediction
from service.runtime.prediction_settings import PredictionSettings
from tests.support.manual_host import ManualHost
from tests.support.runtime import Runtime, end_of, new, read_all, running, text_of

pytestmark = pytest.mark.anyio


async def follow(runtime: Runtime, prediction_id: str, after: int = 0, *, attach: bool = False) -> list:
    async with runtime.predictions.open_log(prediction_id, after, attach=attach) as cursor:
        return await read_all(cursor)


async def create(runtime: Runtime, **changes: object) -> str:
    return (await runtime.predictions.create(new(**changes))).prediction.id


async def test_a_prediction_goes_from_accepted_to_completed_and_every_view_has_the_same_text():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            job = await runtime.host.next_job()
            runtime.host.put_out(job, "Hel", "lo")
            runtime.host.end(job, output_tokens=3)
            entries = await follow(runtime, prediction_id)
            assert text_of(entries) == "Hello"
            end = end_of(entries)
            assert (end.status, end.finish_reason) == (Status.SUCCEEDED, FinishReason.STOP)
            assert end.usage.output_tokens == 3
            record = await runtime.predictions.get(prediction_id)
            assert record.status is Status.SUCCEEDED and record.last_sequence == entries[-1].sequence
            assert record.created_at <= record.started_at <= record.completed_at
            assert "".join((await runtime.predictions.read_output(prediction_id)).pieces) == "Hello"
            assert await follow(runtime, prediction_id) == entries
            assert await follow(runtime, prediction_id, entries[-1].sequence) == []


async def test_a_reader_that_joins_anywhere_sees_every_later_entry_once():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            job = await runtime.host.next_job()
            whole: list = []
            seen: dict[int, list] = {}

            async def read(after: int) -> None:
                seen[after] = await follow(runtime, prediction_id, after)

            async with anyio.create_task_group() as tasks:
                async with runtime.predictions.open_log(prediction_id) as cursor:
                    for n in range(8):
                        tasks.start_soon(read, n)
                        runtime.host.put_out(job, f"{n} ")
                        while len(whole) < 3 + n:
                            whole += await cursor.next()
                    runtime.host.end(job)
                    whole += await read_all(cursor)
            for after, entries in seen.items():
                assert entries == whole[after:]


async def test_cancel_ends_a_running_prediction_and_the_slot_is_free_only_when_the_engine_confirms():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            first, second = await create(runtime), await create(runtime)
            job = await runtime.host.next_job()
            runtime.host.put_out(job, "a")
            async with runtime.predictions.open_log(first) as cursor:
                while text_of(list(await cursor.next())) != "a":
                    pass
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.predictions.cancel, first)
                while not runtime.host.canceled:
                    await anyio.lowlevel.checkpoint()
                assert len(runtime.host.history) == 1
                runtime.host.end(job, EndReason.CANCELED, output_tokens=2)
            record = await runtime.predictions.get(first)
            assert (record.status, record.finish_reason) == (Status.CANCELED, FinishReason.CANCELED)
            assert record.usage.output_tokens == 2
            assert (await runtime.host.next_job(2)).id.startswith(second)


async def test_cancel_does_not_wait_for_an_engine_that_does_not_answer():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            prediction_id = await create(runtime)
            job = await runtime.host.next_job()
            record = await runtime.predictions.cancel(prediction_id)
            assert record.status is Status.CANCELED
            assert runtime.dispatcher.running == 1
            runtime.host.put_out(job, "late")
            runtime.host.end(job, EndReason.CANCELED)
            await create(runtime)
            await runtime.host.next_job(2)
            assert text_of(await follow(runtime, prediction_id)) == ""


async def test_cancel_of_a_queued_prediction_never_reaches_the_engine():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            await create(runtime)
            queued = await create(runtime)
            record = await runtime.predictions.cancel(queued)
            assert record.status is Status.CANCELED and record.started_at is None
            assert len(runtime.host.history) == 1
            assert not any(isinstance(e.event, Started) for e in await follow(runtime, queued))


async def test_cancel_after_the_end_changes_nothing():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            runtime.host.end(await runtime.host.next_job())
            await follow(runtime, prediction_id)
            before = await runtime.predictions.get(prediction_id)
            assert await runtime.predictions.cancel(prediction_id) == before
            with pytest.raises(PredictionNotFound):
                await runtime.predictions.cancel("nope")


async def test_the_attached_caller_going_away_cancels_and_a_plain_reader_does_not():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime, attached=True)
            job = await runtime.host.next_job()
            async with runtime.predictions.open_log(prediction_id, attach=True) as caller:
                await caller.next()
                async with runtime.predictions.open_log(prediction_id) as reader:
                    await reader.next()
                assert runtime.host.canceled == []
            assert runtime.host.canceled == [job.id]


async def test_an_attached_prediction_without_its_caller_is_canceled_after_the_grace():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime, attached=True)
            entries = await follow(runtime, prediction_id)
            assert end_of(entries).finish_reason is FinishReason.CANCELED


async def test_a_detached_prediction_outlives_all_its_readers():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            job = await runtime.host.next_job()
            async with runtime.predictions.open_log(prediction_id, attach=True) as cursor:
                await cursor.next()
            assert runtime.host.canceled == []
            runtime.host.end(job)
            assert (
                await runtime.predictions.get(prediction_id, timedelta(seconds=4))
            ).status is Status.SUCCEEDED


async def test_the_deadline_cancels_a_queued_prediction():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            await create(runtime)
            late = await create(runtime, cancel_after=timedelta(seconds=0.05))
            end = end_of(await follow(runtime, late))
            assert (end.status, end.finish_reason) == (Status.CANCELED, FinishReason.DEADLINE)


async def test_the_run_limit_fails_a_prediction():
    settings = PredictionSettings(run_limit=timedelta(seconds=0.05))
    with anyio.fail_after(5):
        async with running(settings=settings) as runtime:
            prediction_id = await create(runtime)
            end = end_of(await follow(runtime, prediction_id))
            assert end.status is Status.FAILED and "longer than the limit" in end.error


async def test_higher_priority_is_served_first_and_equals_in_order_of_arrival():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            await create(runtime)
            low = [await create(runtime) for _ in range(2)]
            high = [await create(runtime, priority=5) for _ in range(2)]
            for n, expected in enumerate([*high, *low], start=2):
                runtime.host.end(await runtime.host.next_job(n - 1))
                assert (await runtime.host.next_job(n)).id.startswith(expected)


async def test_a_lost_engine_is_continued_after_the_log_without_loss_or_repetition():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime, max_tokens=10)
            first = await runtime.host.next_job()
            runtime.host.put_out(first, "a", "b", "c")
            async with runtime.predictions.open_log(prediction_id) as cursor:
                entries: list = []
                while text_of(entries) != "abc":
                    entries += await cursor.next()
                runtime.host.down()
                runtime.host.put_out(first, "GHOST")
                runtime.host.up()
                second = await runtime.host.next_job(2)
                assert (second.text, second.token_ids, second.max_tokens) == ("abc", (97, 98, 99), 7)
                assert second.token_ids_exact and second.id != first.id
                runtime.host.put_out(second, "d")
                runtime.host.end(second, output_tokens=2)
                entries += await read_all(cursor)
            assert text_of(entries) == "abcd"
            assert end_of(entries).usage.output_tokens == 5
            record = await runtime.predictions.get(prediction_id)
            assert record.epoch == 2 and record.status is Status.SUCCEEDED


async def test_a_prompt_that_kills_the_engine_again_and_again_fails():
    with anyio.fail_after(5):
        async with running(claim_limit=3) as runtime:
            prediction_id = await create(runtime)
            for n in range(1, 4):
                await runtime.host.next_job(n)
                runtime.host.down()
                runtime.host.up()
            end = end_of(await follow(runtime, prediction_id))
            assert end.status is Status.FAILED and "died 3 times" in end.error


async def test_a_cancel_accepted_before_the_engine_was_lost_stays_a_cancel():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            await runtime.host.next_job()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.predictions.cancel, prediction_id)
                while not runtime.host.canceled:
                    await anyio.lowlevel.checkpoint()
                runtime.host.down()
            assert (await runtime.predictions.get(prediction_id)).status is Status.CANCELED


async def test_a_model_that_cannot_be_loaded_fails_what_waits():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1)) as runtime:
            ids = [await create(runtime) for _ in range(3)]
            runtime.host.down(final=True)
            for prediction_id in ids:
                assert end_of(await follow(runtime, prediction_id)).status is Status.FAILED


async def test_a_new_process_continues_what_the_old_one_left():
    store = MemoryStore()
    with anyio.fail_after(5):
        async with running(store) as old:
            running_id, queued_id = await create(old), await create(old)
            job = await old.host.next_job()
            old.host.put_out(job, "one ", "two ")
            async with old.predictions.open_log(running_id) as cursor:
                seen: list = []
                while text_of(seen) != "one two ":
                    seen += await cursor.next()
        async with running(store) as fresh:
            jobs = [await fresh.host.next_job(n) for n in (1, 2)]
            resumed = next(j for j in jobs if j.id.startswith(running_id))
            assert resumed.text == "one two "
            fresh.host.put_out(resumed, "three")
            fresh.host.end(resumed)
            rest = await follow(fresh, running_id, seen[-1].sequence)
            assert text_of(seen + rest) == "one two three"
            end_of(seen + rest)
            assert any(j.id.startswith(queued_id) for j in jobs)


async def test_the_same_request_id_names_the_same_prediction():
    with anyio.fail_after(5):
        async with running() as runtime:
            made: list[str] = []

            async def one() -> None:
                made.append(await create(runtime, request_id="r-1"))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(one)
            assert len(set(made)) == 1 and len(runtime.host.history) == 1
            with pytest.raises(IdConflict):
                await create(runtime, request_id="r-1", prompt="another")
            assert runtime.dispatcher.waiting == 0


async def test_refusals_store_nothing_and_leave_the_engine_idle():
    with anyio.fail_after(5):
        async with running(host=ManualHost(context_tokens=10)) as runtime:
            with pytest.raises(InvalidRequest, match="prompt must not be empty"):
                await create(runtime, prompt="")
            with pytest.raises(ContextExceeded):
                await create(runtime, prompt="x" * 10)
            with pytest.raises(InvalidRequest, match="max_tokens"):
                await create(runtime, max_tokens=0)
            request = new().request
            with pytest.raises(ModelNotFound):
                await runtime.predictions.create(NewPrediction("no/model", request))
            assert (await runtime.predictions.list(limit=10)).predictions == ()
            assert (runtime.dispatcher.waiting, runtime.host.history) == (0, [])


async def test_a_forced_tool_is_checked_before_the_queue_and_kept_as_asked():
    tools = (Tool("f"), Tool("g", "", '{"type": "object", "properties": {"a": {"type": "nonsense"}}}'))
    chat = ChatPrompt((ChatMessage("user", "x"),), tools, ForcedTool("f"))
    with anyio.fail_after(5):
        async with running() as runtime:

            async def create_chat(prompt: ChatPrompt) -> str:
                asked = NewPrediction("test/model", GenerationRequest(prompt))
                return (await runtime.predictions.create(asked)).prediction.id

            with pytest.raises(InvalidRequest) as refused:
                await create_chat(replace(chat, forced_tool=ForcedTool()))
            assert [v.field for v in refused.value.violations] == ["chat.tools"]
            assert runtime.host.history == [] and runtime.dispatcher.waiting == 0
            prediction_id = await create_chat(chat)
            job = await runtime.host.next_job()
            assert job.request.prompt == chat and job.request.constraint is None
            runtime.host.put_out(job, '{"na')
            runtime.host.down()
            runtime.host.up()
            again = await runtime.host.next_job(2)
            assert again.replay and again.text == '{"na' and again.request.prompt == chat
            runtime.host.end(again)
            await follow(runtime, prediction_id)
            stored = await runtime.predictions.get(prediction_id)
            assert stored.request is not None and stored.request.prompt == chat


async def test_a_chat_is_counted_only_within_its_bounds():
    good = ChatPrompt((ChatMessage("user", "four"),), (Tool("f"),))
    with anyio.fail_after(5):
        async with running() as runtime:
            assert await runtime.models.count("test/model", good) == 4
            with pytest.raises(InvalidRequest) as refused:
                await runtime.models.count("test/model", replace(good, tools=(Tool(""),)))
            assert [v.field for v in refused.value.violations] == ["chat.tools[0].name"]


async def test_a_full_queue_refuses_with_a_time_to_retry():
    with anyio.fail_after(5):
        async with running(host=ManualHost(slots=1), queue_limit=2) as runtime:
            for _ in range(3):
                await create(runtime)
            with pytest.raises(QueueFull) as refused:
                await create(runtime)
            assert refused.value.retry_after >= timedelta(seconds=1)


async def test_readers_are_limited_and_a_place_comes_free():
    settings = PredictionSettings(readers_limit=1)
    with anyio.fail_after(5):
        async with running(settings=settings) as runtime:
            prediction_id = await create(runtime)
            async with runtime.predictions.open_log(prediction_id):
                with pytest.raises(TooManyReaders):
                    async with runtime.predictions.open_log(prediction_id):
                        pass
            async with runtime.predictions.open_log(prediction_id) as cursor:
                assert await cursor.next()


async def test_drain_refuses_new_work_and_waits_for_running_work():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime)
            job = await runtime.host.next_job()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(runtime.predictions.drain, timedelta(seconds=4))
                await anyio.lowlevel.checkpoint()
                with pytest.raises(Draining):
                    await create(runtime)
                runtime.host.end(job)
            assert (await runtime.predictions.get(prediction_id)).status is Status.SUCCEEDED


async def test_drain_leaves_what_does_not_end_unfinished_in_the_store():
    with anyio.fail_after(5):
        async with running() as runtime:
            prediction_id = await create(runtime, attached=True)
            await runtime.host.next_job()
            async with runtime.predictions.open_log(prediction_id, attach=True) as cursor:
                await cursor.next()
                await runtime.predictions.drain(timedelta(0))
            assert [r.id for r in await runtime.store.unfinished()] == [prediction_id]


async def test_an_attached_caller_that_was_sent_away_has_the_grace_to_come_back():
    settings = PredictionSettings(attach_grace=timedelta(seconds=30))
    with anyio.fail_after(5):
        async with running(settings=settings) as runtime:
            prediction_id = await create(runtime, attached=True)
            await runtime.host.next_job()
            async with runtime.predictions.open_log(prediction_id, attach=True) as cursor:
                await cursor.next()
                cursor.returning = True
            assert runtime.host.canceled == []
            async with runtime.predictions.open_log(prediction_id, attach=True) as cursor:
                await cursor.next()
            assert len(runtime.host.canceled) == 1
