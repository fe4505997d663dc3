"""The official Python client, replicate 1.0.7, unchanged, against the edge. Numbers: contract §8."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest
import replicate
from replicate.exceptions import ModelError, ReplicateError

from protos.tailrace.v1 import prediction_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, WEIGHTS, FakeService, serve_fake

LIMIT_S = 30
TEXTS = ["Hel", "lo", ",\n", " wor", "ld ", "https://a.b", " 한글", "🙂"]
T = TypeVar("T")
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


@asynccontextmanager
async def client_on(
    service: FakeService, **changes: object
) -> AsyncIterator[tuple[RunningEdge, replicate.Client]]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            client = replicate.Client(api_token="any", base_url=edge.url)
            try:
                yield edge, client
            finally:
                client._client.close()


async def in_thread(function: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(function)


async def test_1_run_returns_the_list_of_pieces() -> None:
    service = FakeService(texts=TEXTS)
    async with client_on(service) as (edge, client):
        output = await in_thread(lambda: client.run(MODEL, input={"prompt": "x"}))
        assert "".join(output) == "".join(TEXTS) and all(isinstance(piece, str) for piece in output)
        (line,) = (line for line in edge.log if line["method"] == "POST")
        assert line["status"] == 201


async def test_2_run_polls_on_when_the_wait_is_over() -> None:
    service = FakeService()
    async with client_on(service) as (edge, client), anyio.create_task_group() as group:

        async def generate() -> None:
            prediction = await service.created()
            prediction.emit("Hel")
            while not any(line["status"] == 202 for line in edge.log):
                await anyio.lowlevel.checkpoint()
            prediction.emit("lo")
            prediction.finish()

        group.start_soon(generate)
        output = await in_thread(lambda: client.run(MODEL, input={"prompt": "x"}, wait=1))
        assert "".join(output) == "Hello"


@pytest.mark.parametrize("early", [0, 5])
async def test_12_13_stream_gives_the_text_and_ends_with_done(early: int) -> None:
    service = FakeService()
    async with client_on(service) as (_, client), anyio.create_task_group() as group:

        async def generate() -> None:
            prediction = await service.created()
            prediction.emit(*TEXTS[:early])
            await service.wait_readers(1)
            prediction.emit(*TEXTS[early:])
            prediction.finish()

        group.start_soon(generate)
        events = await in_thread(lambda: list(client.stream(MODEL, input={"prompt": "x"})))
        assert "".join(str(event) for event in events) == "".join(TEXTS)
        assert (events[-1].event.value, events[-1].data) == ("done", "{}")


async def test_14_a_stream_of_nothing_is_one_done() -> None:
    async with client_on(FakeService(texts=[])) as (_, client):
        events = await in_thread(lambda: list(client.stream(MODEL, input={"prompt": "x"})))
        assert [event.event.value for event in events] == ["done"]


async def test_15_silence_does_not_end_a_stream() -> None:
    service = FakeService()
    keepalive = timedelta(milliseconds=5)
    async with client_on(service, keepalive=keepalive) as (_, client), anyio.create_task_group() as group:

        async def generate() -> None:
            prediction = await service.created()
            prediction.emit("a")
            await service.wait_readers(1)
            await anyio.sleep(0.1)
            prediction.emit("b")
            prediction.finish()

        group.start_soon(generate)
        events = await in_thread(lambda: list(client.stream(MODEL, input={"prompt": "x"})))
        assert "".join(str(event) for event in events) == "ab"


async def test_16_line_ends_arrive_as_lf() -> None:
    texts = ["\n", " a", "b\r\nc", "한글", "🙂"]
    async with client_on(FakeService(texts=texts)) as (_, client):
        events = await in_thread(lambda: list(client.stream(MODEL, input={"prompt": "x"})))
        assert "".join(str(event) for event in events) == "".join(texts).replace("\r\n", "\n")


async def test_21_a_failing_run_raises_its_detail() -> None:
    service = FakeService()
    async with client_on(service) as (_, client), anyio.create_task_group() as group:

        async def generate() -> None:
            (await service.created()).finish(prediction_pb2.STATUS_FAILED, "broke")

        group.start_soon(generate)
        with pytest.raises(RuntimeError) as caught:
            await in_thread(lambda: list(client.stream(MODEL, input={"prompt": "x"})))
        assert json.loads(str(caught.value)) == {"detail": "broke"}
    service = FakeService()
    async with client_on(service) as (_, client), anyio.create_task_group() as group:

        async def fail() -> None:
            (await service.created()).finish(prediction_pb2.STATUS_FAILED, "broke")

        group.start_soon(fail)
        with pytest.raises(ModelError, match="broke"):
            await in_thread(lambda: client.run(MODEL, input={"prompt": "x"}))


async def test_23_28_cancel_from_elsewhere_ends_the_stream_and_stays() -> None:
    service = FakeService()
    async with client_on(service) as (_, client):
        create = client.models.predictions.create
        prediction = await in_thread(lambda: create(MODEL, input={"prompt": "x"}))
        service.predictions[prediction.id].emit("a")
        stream = prediction.stream()
        assert str(await in_thread(lambda: next(stream))) == "a"
        canceled = await in_thread(lambda: client.predictions.cancel(prediction.id))
        assert canceled.status == "canceled" and canceled.output == ["a"]
        rest = await in_thread(lambda: list(stream))
        assert [(event.event.value, json.loads(event.data)) for event in rest] == [
            ("done", {"reason": "canceled"})
        ]
        await in_thread(prediction.reload)
        assert prediction.status == "canceled" and prediction.completed_at


async def test_28_a_finished_prediction_stays_as_it_is() -> None:
    async with client_on(FakeService(texts=["a"])) as (_, client):
        create = client.models.predictions.create
        prediction = await in_thread(lambda: create(MODEL, input={"prompt": "x"}))
        await in_thread(prediction.wait)
        await in_thread(prediction.reload)
        await in_thread(prediction.cancel)
        assert prediction.status == "succeeded" and prediction.output == ["a"]


async def test_30_an_unknown_prediction_is_a_404_with_title_and_detail() -> None:
    async with client_on(FakeService()) as (_, client):
        with pytest.raises(ReplicateError) as caught:
            await in_thread(lambda: client.predictions.get("nope"))
        assert caught.value.status == 404 and caught.value.title and caught.value.detail


async def test_32_a_missing_prompt_is_a_422_of_the_input() -> None:
    async with client_on(FakeService()) as (edge, client):
        with pytest.raises(ReplicateError) as caught:
            await in_thread(lambda: client.predictions.create(version=WEIGHTS, input={}))
        assert caught.value.status == 422
        answer = await edge.client.post("/v1/predictions", json={"version": WEIGHTS, "input": {}})
        assert answer.json()["invalid_fields"][0]["field"] == "input"
