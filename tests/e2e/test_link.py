"""The link between an edge and a service: many streams over one call, and what it leaves to others."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from edge.upstream.calls import CallPolicy
from edge.upstream.channel import open_channel
from edge.upstream.events import Completed, OutputText, PredictionEvent
from edge.upstream.link import open_link
from edge.upstream.metadata import Caller
from edge.upstream.predictions import RpcPredictions
from edge.upstream.records import Generation, NewPrediction, Stopping, TextInput
from tests.support.processes import Service, running_service

pytestmark = pytest.mark.anyio
CALLER = Caller("link-test")
POLICY = CallPolicy(stream_retry=timedelta(seconds=20))


@asynccontextmanager
async def linked(service: Service) -> AsyncGenerator[RpcPredictions, None]:
    """Open predictions whose link is up."""
    async with open_channel(service.address) as channel, open_link(channel) as link:
        await link.up.wait()
        yield RpcPredictions(channel, POLICY, link)


async def create(predictions: RpcPredictions, pieces: list[str], **fields: object) -> str:
    """Create a prediction of the scripted engine."""
    prompt = "script:" + json.dumps({"pieces": pieces, **fields})
    new = NewPrediction(Service.MODEL, Generation(TextInput(prompt), stopping=Stopping(max_tokens=100_000)))
    return (await predictions.create(new, caller=CALLER)).id


async def read(predictions: RpcPredictions, prediction_id: str, after: int = 0) -> list[PredictionEvent]:
    """Read a stream to its end."""
    events: list[PredictionEvent] = []
    async with predictions.open_stream(prediction_id, after, caller=CALLER) as stream:
        while not events or not isinstance(events[-1], Completed):
            events += await stream.receive()
    return events


def text_of(events: list[PredictionEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputText))


async def test_many_streams_travel_over_one_call_and_each_gets_its_own_text(tmp_path: Path) -> None:
    texts = [[f"{n}:{k} " for k in range(30)] for n in range(12)]
    found: dict[int, list[PredictionEvent]] = {}
    with anyio.fail_after(60):
        async with running_service(tmp_path) as service, linked(service) as predictions:

            async def one(n: int, prediction_id: str) -> None:
                found[n] = await read(predictions, prediction_id)

            async with anyio.create_task_group() as tasks:
                for n, pieces in enumerate(texts):
                    tasks.start_soon(one, n, await create(predictions, pieces, delay_ms=20))
            assert {n: text_of(events) for n, events in found.items()} == {
                n: "".join(pieces) for n, pieces in enumerate(texts)
            }
            assert "PredictionService/StreamPrediction" not in service.log


async def test_what_the_link_cannot_serve_comes_by_a_call_of_its_own(tmp_path: Path) -> None:
    pieces = [f"{k} " for k in range(20)]
    with anyio.fail_after(60):
        async with running_service(tmp_path) as service, linked(service) as predictions:
            prediction_id = await create(predictions, pieces)
            whole = await read(predictions, prediction_id)
            again = await read(predictions, prediction_id)  # ended: no longer live
            assert text_of(again) == text_of(whole) == "".join(pieces)
            assert text_of(await read(predictions, prediction_id, after=whole[-2].sequence)) == ""


async def test_a_reader_that_falls_behind_goes_on_by_itself_without_loss(tmp_path: Path) -> None:
    piece, count = "y" * 2000, 400
    with anyio.fail_after(60):
        async with running_service(tmp_path) as service, linked(service) as predictions:
            slow = await create(predictions, [piece], repeat=count, delay_ms=1)
            async with predictions.open_stream(slow, 0, caller=CALLER) as stream:
                events = list(await stream.receive())
                record = await predictions.get(
                    slow, caller=CALLER, wait=timedelta(seconds=30), omit_data=True
                )
                assert record.status.is_terminal
                while not isinstance(events[-1], Completed):
                    events += await stream.receive()
            assert text_of(events) == piece * count
            await read(predictions, await create(predictions, ["still there"]))
