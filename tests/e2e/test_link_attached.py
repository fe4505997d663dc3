"""Attached predictions over the link: exact and cancelled by their caller's going, whichever call breaks."""

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
from edge.upstream.events import Completed, OutputText, PredictionEvent, Status
from edge.upstream.link import open_link
from edge.upstream.metadata import Caller
from edge.upstream.port import ChoiceStream
from edge.upstream.predictions import RpcPredictions
from edge.upstream.records import Generation, NewPrediction, Stopping, TextInput
from tests.support.processes import Service, running_service
from tests.support.tcp_relay import TcpRelay, tcp_relay

pytestmark = pytest.mark.anyio
CALLER = Caller("link-test")
POLICY = CallPolicy(stream_retry=timedelta(seconds=20))
LIMIT_S = 60


@asynccontextmanager
async def linked(calls_at: str, link_at: str) -> AsyncGenerator[RpcPredictions, None]:
    """Open predictions whose calls go one way and whose link, which is up, goes another."""
    async with open_channel(calls_at) as calls, open_channel(link_at) as other, open_link(other) as link:
        await link.up.wait()
        yield RpcPredictions(calls, POLICY, link)


def new(pieces: list[str], **fields: object) -> NewPrediction:
    """Return a prediction of the scripted engine."""
    prompt = "script:" + json.dumps({"pieces": pieces, **fields})
    return NewPrediction(Service.MODEL, Generation(TextInput(prompt), stopping=Stopping(max_tokens=100_000)))


async def rest_of(stream: ChoiceStream) -> list[PredictionEvent]:
    """Read the only choice to its end."""
    events: list[PredictionEvent] = []
    while not events or not isinstance(events[-1], Completed):
        events += [choice.event for choice in await stream.receive()]
    assert sum(isinstance(event, Completed) for event in events) == 1
    return events


async def until_output(stream: ChoiceStream) -> list[PredictionEvent]:
    """Read until some output is there."""
    events: list[PredictionEvent] = []
    while not any(isinstance(event, OutputText) for event in events):
        events += [choice.event for choice in await stream.receive()]
    return events


def text_of(events: list[PredictionEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, OutputText))


async def test_attached_streams_travel_over_the_link(tmp_path: Path) -> None:
    texts = [[f"{n}:{k} " for k in range(30)] for n in range(12)]
    found: dict[int, str] = {}
    with anyio.fail_after(LIMIT_S):
        async with running_service(tmp_path) as service, linked(service.address, service.address) as them:

            async def one(n: int) -> None:
                async with them.predict([new(texts[n], delay_ms=20)], caller=CALLER) as stream:
                    found[n] = text_of(await rest_of(stream))

            async with anyio.create_task_group() as tasks:
                for n in range(len(texts)):
                    tasks.start_soon(one, n)
            assert found == {n: "".join(pieces) for n, pieces in enumerate(texts)}
            assert "PredictionService/StreamPrediction" not in service.log


async def test_several_choices_come_over_the_link_each_with_its_own_text(tmp_path: Path) -> None:
    pieces = [[f"{n}:{k} " for k in range(20)] for n in range(3)]
    with anyio.fail_after(LIMIT_S):
        async with running_service(tmp_path) as service, linked(service.address, service.address) as them:
            async with them.predict([new(p, delay_ms=5) for p in pieces], caller=CALLER) as stream:
                texts, ended = dict.fromkeys(range(3), ""), 0
                while ended < len(pieces):
                    for choice in await stream.receive():
                        ended += isinstance(choice.event, Completed)
                        texts[choice.index] += text_of([choice.event])
            assert texts == {n: "".join(p) for n, p in enumerate(pieces)}


@asynccontextmanager
async def cut_link(tmp_path: Path) -> AsyncGenerator[tuple[RpcPredictions, TcpRelay], None]:
    """Open predictions whose link can be cut."""
    with anyio.fail_after(LIMIT_S):
        async with (
            running_service(tmp_path) as service,
            tcp_relay(service.address) as relay,
            linked(service.address, relay.address) as them,
        ):
            yield them, relay


async def test_a_link_that_breaks_costs_an_attached_prediction_nothing(tmp_path: Path) -> None:
    pieces = [f"{k} " for k in range(200)]
    async with cut_link(tmp_path) as (them, relay):
        async with them.predict([new(pieces, delay_ms=5)], caller=CALLER) as stream:
            events = await until_output(stream)
            relay.cut()
            events += await rest_of(stream)
        assert text_of(events) == "".join(pieces)
        assert isinstance(events[-1], Completed) and events[-1].status is Status.SUCCEEDED


async def test_leaving_cancels_after_the_link_has_broken_too(tmp_path: Path) -> None:
    async with cut_link(tmp_path) as (them, relay):
        async with them.predict([new(["a "], repeat=100_000, delay_ms=5)], caller=CALLER) as stream:
            await until_output(stream)
            relay.cut()
            await until_output(stream)
        record = await them.get(stream.accepted[0].prediction_id, caller=CALLER, wait=timedelta(seconds=30))
        assert record.status is Status.CANCELED


async def test_the_call_that_holds_it_is_the_caller_though_the_link_stays(tmp_path: Path) -> None:
    with anyio.fail_after(LIMIT_S):
        async with (
            running_service(tmp_path) as service,
            tcp_relay(service.address) as relay,
            linked(relay.address, service.address) as them,
            them.predict([new(["a "], repeat=100_000, delay_ms=5)], caller=CALLER) as stream,
        ):
            await until_output(stream)
            relay.cut()
            events = await rest_of(stream)
            assert isinstance(events[-1], Completed) and events[-1].status is Status.CANCELED


async def test_a_caller_that_falls_behind_goes_on_by_itself_without_loss(tmp_path: Path) -> None:
    piece, count = "y" * 2000, 400
    with anyio.fail_after(LIMIT_S):
        async with running_service(tmp_path) as service, linked(service.address, service.address) as them:
            async with them.predict([new([piece], repeat=count, delay_ms=1)], caller=CALLER) as stream:
                events = await until_output(stream)
                identity = stream.accepted[0].prediction_id
                record = await them.get(identity, caller=CALLER, wait=timedelta(seconds=30), omit_data=True)
                assert record.status is Status.SUCCEEDED
                events += await rest_of(stream)
            assert text_of(events) == piece * count
