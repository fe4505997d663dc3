"""Attached predictions over real sockets: faults before and after the first event, and who is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import grpc
import pytest

from edge.protocol.sse import SseParser
from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakePrediction, FakeService, Fault, model, serve_fake

LIMIT_S = 20
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 50}
AWAY = Fault(grpc.StatusCode.UNAVAILABLE)
FULL = Fault(
    grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "The queue is full.", retry_after=timedelta(seconds=2.2)
)


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


async def chat(edge: RunningEdge, **fields: object) -> Any:
    return await edge.client.post("/v1/chat/completions", json={**CHAT, **fields})


async def while_driven(
    service: FakeService, ask: Callable[[], Awaitable[Any]], *steps: Callable[[FakePrediction], None]
) -> Any:
    """Ask, and take `steps` with the prediction once it is there."""
    answers: list[Any] = []

    async def keep() -> None:
        answers.append(await ask())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        made = await service.created()
        for step in steps:
            await anyio.sleep(0.03)
            step(made)
    return answers[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_stream_is_mended_as_the_same_caller(stream: bool) -> None:
    service = FakeService(texts=["a", "b", "c"])
    service.faults["Predict"].append(Fault(grpc.StatusCode.UNAVAILABLE, after_events=3))
    service.faults["StreamPrediction"] += [AWAY, Fault(grpc.StatusCode.OK, after_events=1)]
    async with edge_on(service) as edge:
        answer = await chat(edge, stream=stream)
        assert answer.status_code == 200
        text = answer.text if stream else answer.json()["choices"][0]["message"]["content"]
        if stream:
            said = [event.data for event in SseParser().feed(answer.content)]
            assert said[-1] == "[DONE]" and sum('"content":"' in data for data in said) >= 3
        else:
            assert text == "abc"
    (first, *again) = service.requests("StreamPrediction")
    for request in (first, *again):
        assert isinstance(request, prediction_service_pb2.StreamPredictionRequest) and request.attach
    assert len(service.requests("Predict")) == len(service.predictions) == 1


async def test_a_create_that_may_be_repeated_is_with_the_same_request_id() -> None:
    service = FakeService(texts=["a"])
    service.faults["Predict"] += [AWAY, AWAY]
    async with edge_on(service) as edge:
        assert (await chat(edge)).status_code == 200
    ids = {request.request_id for request in service.requests("Predict")}  # type: ignore[attr-defined]
    assert len(ids) == 1 and len(service.requests("Predict")) == 3


@pytest.mark.parametrize("stream", [True, False])
async def test_errors_before_the_first_byte_have_their_status(stream: bool) -> None:
    service = FakeService()
    async with edge_on(service, call_retry_budget=timedelta(0)) as edge:
        service.faults["Predict"].append(FULL)
        answer = await chat(edge, stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert answer.json()["error"]["code"] == "queue_full"
        service.faults["Predict"].append(FULL)
        answer = await edge.client.post("/v1/messages", json={**MESSAGE, "stream": stream})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert answer.json()["error"]["type"] == "rate_limit_error"
        service.faults["Predict"].append(AWAY)
        assert (await chat(edge, stream=stream)).status_code == 503
        service.faults["Predict"].append(AWAY)
        answer = await edge.client.post("/v1/messages", json={**MESSAGE, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
        service.faults["Predict"].append(
            Fault(
                grpc.StatusCode.INVALID_ARGUMENT,
                "INVALID_REQUEST",
                violations=(("json_schema", "uses what this engine cannot follow"),),
            )
        )
        form = {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}
        answer = await chat(edge, stream=stream, response_format=form)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


async def test_a_break_that_cannot_be_mended_is_an_error_and_the_end() -> None:
    service = FakeService()
    async with edge_on(service, retry_budget=timedelta(0)) as edge:
        service.faults["Predict"].append(Fault(grpc.StatusCode.UNAVAILABLE, after_events=4))
        service.faults["StreamPrediction"] += [AWAY] * 5

        def speak(made: FakePrediction) -> None:
            made.emit("a", "b", "c")

        answer = await while_driven(service, lambda: chat(edge, stream=True), speak)
        events = SseParser().feed(answer.content)
        assert [event.event for event in events][-2:] == ["error", "message"]
        assert events[-1].data == "[DONE]" and '"finish_reason":"' not in answer.text


async def test_all_choices_are_cancelled_with_their_caller() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        async with anyio.create_task_group() as caller:

            async def ask() -> None:
                await chat(edge, n=3)

            caller.start_soon(ask)
            await service.wait_readers(3)
            caller.cancel_scope.cancel()
        await service.wait_readers(0)
        statuses = {made.status for made in service.predictions.values()}
        assert statuses == {prediction_pb2.STATUS_CANCELED}


async def test_a_choice_that_is_refused_cancels_those_before_it() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        service.faults["Predict"] += [Fault(grpc.StatusCode.OK, after_events=99), FULL]
        assert (await chat(edge, n=2, stream=True)).status_code == 429
        await service.wait_readers(0)
        assert [made.status for made in service.predictions.values()] == [prediction_pb2.STATUS_CANCELED]


async def test_choices_that_come_mixed_keep_their_own_text() -> None:
    service = FakeService()
    async with edge_on(service) as edge:

        def speak(_: FakePrediction) -> None:
            one, two = service.predictions.values()
            two.emit("B")
            one.emit("A")
            two.finish()
            one.emit("a")
            one.finish()

        async def ask() -> Any:
            return await chat(edge, n=2)

        answer = await while_driven(service, ask, speak)
        choices = answer.json()["choices"]
        assert [c["message"]["content"] for c in choices] == ["Aa", "B"]
        assert answer.headers["x-request-id"] == next(iter(service.predictions))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stopping_edge_tells_those_it_cannot_serve_to_the_end(stream: bool) -> None:
    service = FakeService()
    changes = {"drain_deadline": timedelta(seconds=1), "drain_spread": timedelta(0)}
    async with edge_on(service, **changes) as edge:

        def stop(made: FakePrediction) -> None:
            made.emit("a")
            edge.lifecycle.begin_drain()

        answer = await while_driven(service, lambda: chat(edge, stream=stream), stop)
        if stream:
            error, done = SseParser().feed(answer.content)[-2:]
            assert (error.event, done.data) == ("error", "[DONE]") and '"unavailable"' in error.data
            assert b"retry:" not in answer.content
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
            assert "retry-after" in answer.headers
        await service.wait_readers(0)


async def test_models_that_are_not_ready_or_not_there() -> None:
    service = FakeService(models=[model("acme/new", engine=""), model("acme/raw", chat_template=False)])
    async with edge_on(service) as edge:
        loading = await chat(edge, model="new")
        assert (loading.status_code, loading.json()["error"]["code"]) == (503, "unavailable")
        assert loading.headers["retry-after"]
        assert (await chat(edge, model="nope")).json()["error"]["code"] == "model_not_found"
        refused = await chat(edge, model="acme/raw")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        missing = await edge.client.post("/v1/messages", json={**MESSAGE, "model": "nope"})
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
        several = await edge.client.post("/generate", json={"prompt": "x"})
        assert (several.status_code, several.json()["error"]["param"]) == (400, "model")


async def test_the_access_line_names_the_prediction() -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service) as edge:
        answer = await chat(edge)
        (line,) = [line for line in edge.log if line.get("path") == "/v1/chat/completions"]
        assert line["prediction_id"] == answer.headers["x-request-id"] == next(iter(service.predictions))
