"""Owners, chosen ids and repeated creates, in the runtime and over RPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio
import grpc
import pytest

from protos.metadata import REPLAYED
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.adapters.stores.memory import MemoryStore
from service.domain.errors import Draining, IdConflict, ModelNotFound, PredictionNotFound, QueueFull
from service.domain.events import FinishReason, Status
from service.runtime.prediction_settings import PredictionSettings
from service.runtime.predictions import Predictions
from tests.support.rpc import failure, predict_request, serving
from tests.support.runtime import Runtime, new, running

pytestmark = pytest.mark.anyio


async def opened(predictions: Predictions, prediction_id: str, owner: str) -> None:
    async with predictions.open_log(prediction_id, owner=owner):
        pass


async def followed(predictions: Predictions, prediction_id: str, owner: str) -> None:
    found = predictions.follow(prediction_id, 0, lambda: None, owner=owner)
    if found is None:  # as the edge then does
        await opened(predictions, prediction_id, owner)
    else:
        found.leave()


READS: dict[str, Callable[[Predictions, str, str], Awaitable[object]]] = {
    "get": lambda p, i, owner: p.get(i, owner=owner),
    "wait": lambda p, i, owner: p.get(i, timedelta(seconds=9), owner=owner),
    "read_output": lambda p, i, owner: p.read_output(i, owner=owner),
    "open_log": opened,
    "follow": followed,
    "cancel": lambda p, i, owner: p.cancel(i, owner=owner),
}


async def ended(runtime: Runtime, owner: str) -> str:
    """Return the id of a prediction that has ended."""
    prediction_id = (await runtime.predictions.create(new(owner=owner))).prediction.id
    job = await runtime.host.next_job()
    runtime.host.put_out(job, "a")
    runtime.host.end(job)
    await runtime.predictions.get(prediction_id, timedelta(seconds=9))
    return prediction_id


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("live", [True, False])
async def test_anothers_prediction_is_an_unknown_one(name: str, live: bool):
    with anyio.fail_after(5):
        async with running() as runtime:
            if live:
                prediction_id = (await runtime.predictions.create(new(owner="ann"))).prediction.id
                await runtime.host.next_job()
            else:
                prediction_id = await ended(runtime, "ann")
            refused = []
            for wanted in (prediction_id, "unknown"):
                with pytest.raises(PredictionNotFound) as raised:
                    await READS[name](runtime.predictions, wanted, "bob")
                refused.append((raised.value.message, raised.value.detail))
            assert refused[0] == refused[1]
            status = (await runtime.predictions.get(prediction_id)).status
            assert status is (Status.STARTING if live else Status.SUCCEEDED)
            if name != "wait":
                for owner in ("ann", ""):
                    await READS[name](runtime.predictions, prediction_id, owner)


async def test_a_list_is_the_owners():
    with anyio.fail_after(5):
        async with running() as runtime:
            made = [
                (await runtime.predictions.create(new(owner=o))).prediction.id for o in ("ann", "bob", "ann")
            ]
            for owner, wanted in (("ann", made[::2]), ("bob", made[1:2]), ("cid", []), ("", made)):
                found = (await runtime.predictions.list(limit=9, owner=owner)).predictions
                assert {record.id for record in found} == set(wanted)


async def test_twenty_creates_of_one_id_are_one_prediction():
    with anyio.fail_after(5):
        async with running() as runtime:
            answers = []

            async def create(owner: str, prompt: str) -> None:
                asked = new(prompt, prediction_id="mine", owner=owner)
                answers.append(await runtime.predictions.create(asked))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(create, "ann", "hello")
            assert [answer.fresh for answer in answers].count(True) == 1
            assert {answer.prediction.id for answer in answers} == {"mine"}
            assert runtime.dispatcher.waiting + runtime.dispatcher.running == 1
            messages = set()
            for owner, prompt in (("ann", "other"), ("bob", "hello"), ("", "hello")):
                with pytest.raises(IdConflict) as raised:
                    await create(owner, prompt)
                messages.add(raised.value.message)
            assert len(messages) == 1


async def test_a_request_id_does_not_answer_for_another_id():
    with anyio.fail_after(5):
        async with running() as runtime:
            create = runtime.predictions.create
            await create(new(request_id="r", prediction_id="one"))
            with pytest.raises(IdConflict):
                await create(new(request_id="r", prediction_id="two"))
            for again in (new(request_id="r"), new(request_id="r", fresh_id="three")):
                assert (await create(again)).prediction.id == "one"
            with pytest.raises(PredictionNotFound):
                await runtime.predictions.get("two")


async def test_a_fresh_id_is_for_a_new_prediction_without_another():
    with anyio.fail_after(5):
        async with running() as runtime:
            create = runtime.predictions.create
            assert (await create(new(fresh_id="one"))).prediction.id == "one"
            assert (await create(new(fresh_id="two", prediction_id="mine"))).prediction.id == "mine"
            with pytest.raises(PredictionNotFound):
                await runtime.predictions.get("two")


@pytest.mark.parametrize("named", [{"request_id": "r"}, {"prediction_id": "mine"}])
async def test_a_repeat_is_answered_when_nothing_new_is_taken(named: dict[str, Any]):
    with anyio.fail_after(5):
        async with running(queue_limit=0) as runtime:
            create = runtime.predictions.create
            first = await create(new(owner="ann", **named))
            await runtime.host.next_job()
            while True:  # until the queue is full
                try:
                    await create(new("filler"))
                except QueueFull:
                    break
            again = await create(new(owner="ann", **named))
            assert (again.prediction.id, again.fresh) == (first.prediction.id, False)
            for other in (new("other", owner="ann", **named), new(owner="bob", **named)):
                with pytest.raises(QueueFull):
                    await create(other)
            runtime.predictions.draining = True
            assert not (await create(new(owner="ann", **named))).fresh
            with pytest.raises(Draining):
                await create(new("x"))


async def test_a_repeat_shows_what_has_become_of_it():
    with anyio.fail_after(5):
        async with running() as runtime:
            create = runtime.predictions.create
            await create(new(request_id="r"))
            job = await runtime.host.next_job()
            runtime.host.put_out(job, "a")
            runtime.host.end(job)
            while not (again := await create(new(request_id="r"))).prediction.status.terminal:
                await anyio.lowlevel.checkpoint()
            assert again.prediction.status is Status.SUCCEEDED and not again.fresh


async def test_an_owner_and_a_chosen_id_survive_a_restart():
    store = MemoryStore()
    with anyio.fail_after(5):
        async with running(store) as runtime:
            await runtime.predictions.create(new(owner="ann", prediction_id="mine"))
        async with running(store) as runtime:
            job = await runtime.host.next_job()
            with pytest.raises(PredictionNotFound):
                await runtime.predictions.cancel("mine", owner="bob")
            again = await runtime.predictions.create(new(owner="ann", prediction_id="mine"))
            assert not again.fresh
            runtime.host.end(job)
            record = await runtime.predictions.get("mine", timedelta(seconds=9), owner="ann")
            assert (record.owner, record.status) == ("ann", Status.SUCCEEDED)


async def test_an_owner_has_a_limit_of_unfinished_predictions():
    with anyio.fail_after(5):
        async with running(settings=PredictionSettings(owner_limit=2)) as runtime:
            create = runtime.predictions.create
            answers = []

            async def ask(owner: str) -> None:
                try:
                    answers.append((await create(new(owner=owner))).prediction.id)
                except QueueFull as error:
                    answers.append(error.message)

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask, "ann")
            refusals = [answer for answer in answers if " " in answer]
            assert refusals == ["at most 2 predictions of one owner may be unfinished; try again"] * 3
            for owner in ("bob", "", "", ""):
                await create(new(owner=owner))
            (first,) = [answer for answer in answers if " " not in answer][:1]
            await runtime.predictions.cancel(first)
            await create(new(owner="ann", request_id="r"))
            with pytest.raises(QueueFull):
                await create(new(owner="ann"))
            assert not (await create(new(owner="ann", request_id="r"))).fresh
            with pytest.raises(ModelNotFound):
                await create(replace(new(owner="bob"), model="nope/nope"))
            await create(new(owner="bob"))


async def test_the_limit_counts_what_an_earlier_process_left():
    store = MemoryStore()
    settings = PredictionSettings(owner_limit=1)
    with anyio.fail_after(5):
        async with running(store, settings=settings) as runtime:
            await runtime.predictions.create(new(owner="ann"))
        async with running(store, settings=settings) as runtime:
            await runtime.host.next_job()
            with pytest.raises(QueueFull):
                await runtime.predictions.create(new(owner="ann"))


# ------------------------------------------------------------------------------------------- RPC


def create_request(**fields: Any) -> spb.CreatePredictionRequest:
    return spb.CreatePredictionRequest(
        model="local/test", generation=pb.GenerationRequest(prompt="hello"), **fields
    )


async def test_every_method_acts_for_its_owner():
    with anyio.fail_after(10):
        async with serving() as rpc:
            stub = rpc.predictions
            made = await stub.CreatePrediction(create_request(owner="ann", prediction_id="mine"))
            assert (made.id, made.owner) == ("mine", "ann")
            rpc.runtime.end("mine", Status.CANCELED, FinishReason.CANCELED)
            for method, request in (
                (stub.GetPrediction, spb.GetPredictionRequest),
                (stub.CancelPrediction, spb.CancelPredictionRequest),
            ):
                answers = [await failure(method(request(id=i, owner="bob"))) for i in ("mine", "unknown")]
                assert answers[0] == answers[1] and answers[0].reason == "PREDICTION_NOT_FOUND"
                for owner in ("ann", ""):
                    assert (await method(request(id="mine", owner=owner))).owner == "ann"
            calls = stub.ListWebhookDeliveries
            request = spb.ListWebhookDeliveriesRequest
            answers = [
                await failure(calls(request(prediction_id=i, owner="bob"))) for i in ("mine", "unknown")
            ]
            assert answers[0] == answers[1] and answers[0].reason == "PREDICTION_NOT_FOUND"
            await calls(request(prediction_id="mine", owner="ann"))
            await calls(request(owner="bob"))
            assert rpc.webhooks.asked_for == ["bob"]
            streams = [
                stub.StreamPrediction(spb.StreamPredictionRequest(id=i, owner="bob")) for i in ("mine", "no")
            ]
            for call in streams:
                assert (await failure(call)).reason == "PREDICTION_NOT_FOUND"
            own = stub.StreamPrediction(spb.StreamPredictionRequest(id="mine", owner="ann"))
            assert (await own.read()).WhichOneof("event") == "accepted"
            for owner, count in (("ann", 1), ("bob", 0), ("", 1)):
                listed = await stub.ListPredictions(spb.ListPredictionsRequest(owner=owner))
                assert len(listed.predictions) == count


async def test_predict_creates_for_its_owner():
    with anyio.fail_after(10):
        async with serving() as rpc:
            call = rpc.predictions.Predict(predict_request(owner="ann"))
            await call.read()
            assert rpc.runtime.created[0].owner == "ann"


async def test_a_repeat_says_so_in_its_trailer():
    with anyio.fail_after(10):
        async with serving() as rpc:
            said = []
            for _ in range(2):
                call = rpc.predictions.CreatePrediction(create_request(prediction_id="mine"))
                await call
                said.append(dict(await call.trailing_metadata()).get(REPLAYED))
            assert said == [None, "1"]


@pytest.mark.parametrize("wrong", ["UPPER", "a" * 65, "a b", "a_b", "ü", "a\n"])
async def test_an_id_that_cannot_be_chosen_is_refused(wrong: str):
    with anyio.fail_after(10):
        async with serving() as rpc:
            refused = await failure(rpc.predictions.CreatePrediction(create_request(prediction_id=wrong)))
            assert refused.code is grpc.StatusCode.INVALID_ARGUMENT and refused.bad is not None
            assert [violation.field for violation in refused.bad.field_violations] == ["prediction_id"]


@pytest.mark.parametrize("wrong", ["a" * 129, "ü", "a\n"])
async def test_an_owner_that_cannot_be_is_refused_everywhere(wrong: str):
    with anyio.fail_after(10):
        async with serving() as rpc:
            stub = rpc.predictions
            for call in (
                stub.CreatePrediction(create_request(owner=wrong)),
                stub.Predict(predict_request(owner=wrong)),
                stub.GetPrediction(spb.GetPredictionRequest(id="x", owner=wrong)),
                stub.CancelPrediction(spb.CancelPredictionRequest(id="x", owner=wrong)),
                stub.ListPredictions(spb.ListPredictionsRequest(owner=wrong)),
                stub.StreamPrediction(spb.StreamPredictionRequest(id="x", owner=wrong)),
                stub.ListWebhookDeliveries(spb.ListWebhookDeliveriesRequest(owner=wrong)),
                stub.GetWebhookSecret(spb.GetWebhookSecretRequest(owner=wrong)),
            ):
                refused = await failure(call)
                assert refused.bad is not None
                assert [violation.field for violation in refused.bad.field_violations] == ["owner"]
