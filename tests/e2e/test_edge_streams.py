"""SSE streams through the edge while service, engine or edge are killed, drained or slow."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import httpx
import pytest

from edge.protocol.sse import SseEvent, SseParser
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.processes import Edge, Service, client, running_edge, running_service
from tests.support.streams import disturb

pytestmark = pytest.mark.anyio
MODEL = Service.MODEL
KILLS = 20


def numbered(count: int, **fields: object) -> tuple[str, str]:
    """Return a prompt for the scripted engine, and the text that must come."""
    pieces = [f"{n} " for n in range(count)]
    return "script:" + json.dumps({"pieces": pieces, **fields}), "".join(pieces)


async def create(http: httpx.AsyncClient, edge: Edge, prompt: str, **headers: str) -> dict:
    """Create a prediction through the edge."""
    body = {"input": {"prompt": prompt, "max_tokens": 100_000}}
    answer = await http.post(f"{edge.url}/v1/models/{MODEL}/predictions", json=body, headers=headers)
    assert answer.status_code in (201, 202), answer.text
    return answer.json()


class Reader:
    """An EventSource: joins the output, remembers the last id, comes back when cut off."""

    def __init__(self) -> None:
        self.text = ""
        self.ids: list[str] = []
        self.done: dict | None = None
        self.connections = 0
        self.retry_told = False

    def take(self, event: SseEvent) -> None:
        assert self.done is None, "an event after done"
        assert event.id and event.id not in self.ids, "an id came twice"
        self.ids.append(event.id)
        match event.event:
            case "output":
                self.text += event.data
            case "done":
                self.done = json.loads(event.data)

    async def follow(self, url: str) -> None:
        """Read to `done`, reconnecting with Last-Event-ID as often as the connection breaks."""
        async with httpx.AsyncClient(timeout=httpx.Timeout(10, read=60)) as http:
            while self.done is None:
                self.connections += 1
                headers = {"Accept": "text/event-stream"}
                if self.ids:
                    headers["Last-Event-ID"] = self.ids[-1]
                parser = SseParser()
                try:
                    async with http.stream("GET", url, headers=headers) as answer:
                        assert answer.status_code == 200, await answer.aread()
                        async for chunk in answer.aiter_raw():
                            for event in parser.feed(chunk):
                                self.take(event)
                            self.retry_told = self.retry_told or parser.retry is not None
                            if self.done is not None:
                                return
                except httpx.TransportError:
                    await anyio.sleep(0.02)  # as EventSource does, if shorter

    async def disturbed_by(self, act: Callable[[], Awaitable[None]], times: int = KILLS) -> None:
        """Call `act` at random points of the stream."""
        await disturb(act, times=times, progress=lambda: len(self.ids), over=lambda: self.done is not None)


async def test_an_sse_stream_goes_on_while_the_engine_is_killed_again_and_again(tmp_path: Path) -> None:
    prompt, text = numbered(1200, delay_ms=8)
    reader = Reader()
    with anyio.fail_after(150):
        async with (
            running_service(tmp_path) as service,
            running_edge(tmp_path, service.address) as edge,
            httpx.AsyncClient() as http,
        ):
            prediction = await create(http, edge, prompt)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.follow, prediction["urls"]["stream"])
                await reader.disturbed_by(service.kill_engines)
            assert reader.text == text and reader.done == {} and reader.connections == 1
            final = (await http.get(prediction["urls"]["get"])).json()
            assert "".join(final["output"]) == text and final["status"] == "succeeded"


async def test_an_sse_stream_sees_only_a_pause_while_the_service_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    prompt, text = numbered(1500, delay_ms=20)
    reader = Reader()
    with anyio.fail_after(170):
        async with (
            running_service(tmp_path) as service,
            running_edge(tmp_path, service.address) as edge,
            httpx.AsyncClient() as http,
        ):
            prediction = await create(http, edge, prompt)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.follow, prediction["urls"]["stream"])
                await reader.disturbed_by(service.kill_and_start)
            assert reader.text == text and reader.done == {} and reader.connections == 1


async def test_an_sse_stream_is_resumed_on_another_edge_when_its_edge_is_killed(tmp_path: Path) -> None:
    prompt, text = numbered(1500, delay_ms=10)
    reader = Reader()
    with anyio.fail_after(90):
        async with running_service(tmp_path) as service, httpx.AsyncClient() as http:
            edge = Edge(tmp_path, service.address)
            await edge.start()
            await edge.ready()
            prediction = await create(http, edge, prompt)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.follow, prediction["urls"]["stream"])
                await reader.disturbed_by(edge.kill_and_start, times=3)
            await edge.close()
            assert reader.text == text and reader.connections >= 4


async def test_sigterm_tells_sse_clients_to_come_back_and_both_processes_exit_by_themselves(
    tmp_path: Path,
) -> None:
    prompt, text = numbered(200, delay_ms=20)
    reader = Reader()
    with anyio.fail_after(90):
        async with running_service(tmp_path, drain="0.3") as service, httpx.AsyncClient() as http:
            edge = Edge(tmp_path, service.address)
            await edge.start()
            await edge.ready()
            prediction = await create(http, edge, prompt)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reader.follow, prediction["urls"]["stream"])
                while len(reader.ids) < 5:
                    await anyio.sleep(0.005)
                assert await edge.stop_with(signal.SIGTERM) == 0
                await edge.start()
                await edge.ready()
                while reader.connections < 2:
                    await anyio.sleep(0.005)
                assert await service.stop_with(signal.SIGTERM) == 0
                await service.start()
            await edge.close()
            assert reader.text == text and reader.retry_told


async def test_prefer_wait_that_is_cut_off_does_not_cancel_the_prediction(tmp_path: Path) -> None:
    prompt, text = numbered(40, delay_ms=20)
    with anyio.fail_after(60):
        async with (
            running_service(tmp_path) as service,
            running_edge(tmp_path, service.address) as edge,
            httpx.AsyncClient() as http,
        ):
            body = {"input": {"prompt": prompt}, "version": MODEL}
            with pytest.raises(httpx.ReadTimeout):
                await http.post(
                    f"{edge.url}/v1/predictions", json=body, headers={"Prefer": "wait"}, timeout=0.4
                )
            waited = await create(http, edge, numbered(1)[0], Prefer="wait")
            assert waited["status"] == "succeeded"
            async with client(service.address) as stubs:
                listed = await stubs.predictions.ListPredictions(rpc.ListPredictionsRequest())
                get = rpc.GetPredictionRequest(id=listed.predictions[-1].id, wait={"seconds": 20})
                assert "".join((await stubs.predictions.GetPrediction(get)).output) == text
