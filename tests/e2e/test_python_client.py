"""The Python gRPC client against a running service: streams, resume, errors, several event loops."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import grpc
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from tailrace import AsyncClient, Client, StreamBroken, TailraceError
from tests.support.processes import ROOT, Service, running_service

MODEL = Service.MODEL
SLOW = 'script:{"pieces": ["word "], "repeat": 40, "delay_ms": 25}'
"""Forty words in a second."""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with running_service(tmp_path) as running:
        yield running


def text_of(events: list[pb.PredictionEvent]) -> str:
    return "".join(event.output.text for event in events)


async def test_the_example_streams_to_the_end(service: Service) -> None:
    command = [sys.executable, "clients/python/example.py", service.address, MODEL, "Hello"]
    done = await anyio.run_process(command, cwd=ROOT, check=False, stderr=subprocess.STDOUT)
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert "STATUS_SUCCEEDED" in shown


async def test_a_stream_equals_the_record_and_can_be_read_again_from_any_event(service: Service) -> None:
    async with AsyncClient(service.address) as client:
        async with client.predict(MODEL, prompt="again", max_tokens=20) as stream:
            events = [event async for event in stream]
        record = await client.get(stream.prediction_id)
        assert text_of(events) == "".join(record.output)
        assert events[-1].completed.status == record.status == pb.STATUS_SUCCEEDED
        middle = events[len(events) // 2].sequence
        async with client.stream(stream.prediction_id, after_sequence=middle) as rest:
            later = [event async for event in rest]
        assert text_of(later) == text_of([event for event in events if event.sequence > middle])


async def test_leaving_a_predict_cancels_it(service: Service) -> None:
    async with AsyncClient(service.address) as client:
        async with client.predict(MODEL, prompt=SLOW, max_tokens=500) as stream:
            async for event in stream:
                if event.WhichOneof("event") == "output":
                    break
        record = await client.get(stream.prediction_id, wait=timedelta(seconds=10))
        assert record.status == pb.STATUS_CANCELED


async def test_create_get_and_cancel(service: Service) -> None:
    async with AsyncClient(service.address) as client:
        created = await client.create(MODEL, prompt="detached", max_tokens=5, labels={"a": "b"})
        ended = await client.get(created.id, wait=timedelta(seconds=10))
        assert (ended.status, dict(ended.labels)) == (pb.STATUS_SUCCEEDED, {"a": "b"})
        assert await client.cancel(created.id) == ended
        assert [model.name for model in (await client.models()).models] == [MODEL]


async def test_errors_have_a_reason_and_fields(service: Service) -> None:
    async with AsyncClient(service.address) as client:
        with pytest.raises(TailraceError) as refused:
            await client.create(MODEL, prompt="x", temperature=9.0)
        assert refused.value.reason == "INVALID_REQUEST"
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert [violation.field for violation in refused.value.violations] == ["sampling.temperature"]
        with pytest.raises(TailraceError, match="PREDICTION_NOT_FOUND"):
            async with client.stream("a" * 26) as stream:
                await anext(stream)
    with pytest.raises(TypeError):
        Client(service.address).predict(MODEL, prompt="x", no_such_option=1)


async def test_a_stream_goes_on_after_the_service_was_killed(service: Service) -> None:
    async with AsyncClient(service.address) as client:
        created = await client.create(MODEL, prompt=SLOW)
        events = []
        killed = False
        async with client.stream(created.id) as stream:
            async for event in stream:
                events.append(event)
                if event.WhichOneof("event") == "output" and not killed:
                    killed = True
                    await service.kill()
                    await service.start()
        assert text_of(events) == "word " * 40
        assert events[-1].completed.status == pb.STATUS_SUCCEEDED


async def test_one_client_serves_two_event_loops_one_after_the_other(service: Service) -> None:
    client = AsyncClient(service.address)

    async def once() -> str:
        created = await client.create(MODEL, prompt="loops", max_tokens=3)
        await client.close()
        return created.id

    def twice() -> tuple[str, str]:
        return asyncio.run(once()), asyncio.run(once())

    one, other = await anyio.to_thread.run_sync(twice)
    assert one != other


async def test_the_client_without_a_loop(service: Service) -> None:
    def use() -> tuple[list[pb.PredictionEvent], pb.Prediction]:
        with Client(service.address) as client, client.predict(MODEL, prompt="sync", max_tokens=8) as stream:
            events = list(stream)
            return events, client.get(stream.prediction_id)

    events, record = await anyio.to_thread.run_sync(use)
    assert text_of(events) == "".join(record.output)
    assert events[-1].completed.status == pb.STATUS_SUCCEEDED


async def test_nobody_there_is_an_error_with_its_code(free_tcp_port: int) -> None:
    async with AsyncClient(f"127.0.0.1:{free_tcp_port}") as client:
        with pytest.raises(TailraceError) as nobody:
            await client.get("a" * 26)
        assert nobody.value.code is grpc.StatusCode.UNAVAILABLE
        assert nobody.value.passing
        assert not isinstance(nobody.value, StreamBroken)
