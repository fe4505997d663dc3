"""Service and edge as one pair of processes, and a plain HTTP caller of Replicate's API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
from google.protobuf.duration_pb2 import Duration

from edge.protocol.sse import SseEvent, SseParser
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import GetModelRequest
from tests.support.processes import Edge, Service, Stubs, client, running_edge, running_service

MODEL = Service.MODEL
LOOPBACK_WEBHOOKS = {"webhook_allow_http": "1", "webhook_allow_private": "1"}
"""Settings of a service that may call receivers on this machine."""
LIMIT_S = 30
"""Safety net of one test on a pair that runs already."""
LATEST = 8
"""Predictions whose ends are waited for: as many as one test runs at a time."""


def script(**fields: object) -> str:
    """Return a prompt that tells the scripted engine what to do."""
    return "script:" + json.dumps(fields)


def numbered(count: int, **fields: object) -> tuple[str, str]:
    """Return a prompt for numbered words, and the text that must come."""
    pieces = [f"{n} " for n in range(count)]
    return script(pieces=pieces, **fields), "".join(pieces)


class Reading:
    """What one connection to a stream brought so far. Iterating waits for the next network chunk."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.headers = answer.headers
        self.raw = b""
        self.events: list[SseEvent] = []
        self.parser = SseParser()
        self._chunks = answer.aiter_raw()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self.raw += chunk
        self.events += self.parser.feed(chunk)
        return chunk

    async def until_events(self, count: int) -> None:
        """Read until so many events are there."""
        while len(self.events) < count:
            await anext(self)

    async def to_done(self) -> None:
        """Read to `done`, or to the connection's end if that comes first."""
        async for _ in self:
            if self.done is not None:
                return

    async def to_end(self) -> None:
        """Read until the server closes."""
        async for _ in self:
            pass

    @property
    def output(self) -> list[str]:
        """The text of each output event."""
        return [event.data for event in self.events if event.event == "output"]

    @property
    def text(self) -> str:
        """The output events, joined."""
        return "".join(self.output)

    @property
    def ids(self) -> list[str]:
        """The ids of all events."""
        return [event.id for event in self.events]

    @property
    def done(self) -> Any:
        """What `done` said; None before it came."""
        last = self.events[-1] if self.events else None
        return json.loads(last.data) if last is not None and last.event == "done" else None


class Api:
    """The edge's HTTP API as a caller without a client library sees it."""

    def __init__(self, edge: Edge, http: httpx.AsyncClient) -> None:
        self.edge = edge
        self.http = http

    async def create(
        self, prompt: str, headers: Mapping[str, str] | None = None, **fields: object
    ) -> dict[str, Any]:
        """Create a prediction that must be taken."""
        answer = await self.post({"prompt": prompt, "max_tokens": 100_000, **fields}, headers)
        assert answer.status_code in (201, 202), answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def post(self, given: object, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Ask for a prediction with any `input`."""
        return await self.http.post(
            f"{self.edge.url}/v1/models/{MODEL}/predictions", json={"input": given}, headers=headers
        )

    async def post_raw(self, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Ask for a prediction with any bytes as body."""
        return await self.http.post(
            f"{self.edge.url}/v1/models/{MODEL}/predictions", content=body, headers=headers
        )

    async def create_many(self, count: int) -> list[str]:
        """Create so many predictions one after the other; return their ids, the newest first."""
        return [(await self.create(script()))["id"] for _ in range(count)][::-1]

    async def get(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """Return a prediction as it stands."""
        answer = await self.http.get(prediction["urls"]["get"])
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def cancel(self, prediction: Mapping[str, Any]) -> httpx.Response:
        """Cancel a prediction."""
        return await self.http.post(prediction["urls"]["cancel"])

    async def ended(self, prediction: Mapping[str, Any]) -> dict[str, Any]:
        """Read the stream to its end and return the prediction as it then stands."""
        assert (await self.read(prediction)).done is not None
        return await self.get(prediction)

    @asynccontextmanager
    async def stream(
        self, prediction: Mapping[str, Any], headers: Mapping[str, str] | None = None, query: str = ""
    ) -> AsyncGenerator[Reading, None]:
        """Open a prediction's stream."""
        async with self.http.stream("GET", prediction["urls"]["stream"] + query, headers=headers) as answer:
            yield Reading(answer)

    async def read(
        self, prediction: Mapping[str, Any], headers: Mapping[str, str] | None = None, query: str = ""
    ) -> Reading:
        """Read a stream to `done`, or to the connection's end if that comes first."""
        async with self.stream(prediction, headers, query) as reading:
            await reading.to_done()
            return reading


@dataclass(frozen=True)
class Pair:
    """A running service with a running edge, and clients of both."""

    service: Service
    edge: Edge
    stubs: Stubs
    api: Api

    @property
    def http(self) -> httpx.AsyncClient:
        """The API's own client."""
        return self.api.http


@asynccontextmanager
async def running_pair(
    folder: Path, service: Mapping[str, str] | None = None, edge: Mapping[str, str] | None = None
) -> AsyncGenerator[Pair, None]:
    """Run a pair until the block ends; the mappings are settings without prefix."""
    async with (
        running_service(folder, **(service or {})) as running,
        running_edge(folder, running.address, **(edge or {})) as before,
        client(running.address) as stubs,
        httpx.AsyncClient(timeout=httpx.Timeout(LIMIT_S), trust_env=False) as http,
    ):
        yield Pair(running, before, stubs, Api(before, http))


async def until_idle(stubs: Stubs) -> None:
    """Return once the model runs nothing, nothing waits for it, and the ends of the latest are stored.

    A slot is free when the engine says so, which is before the end is in the log.
    """
    with anyio.fail_after(LIMIT_S):
        while True:
            load = (await stubs.models.GetModel(GetModelRequest(name=MODEL))).load
            if load.running == 0 and load.waiting == 0:
                break
            await anyio.lowlevel.checkpoint()
        latest = await stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=LATEST))
        for prediction in latest.predictions:
            asked = rpc.GetPredictionRequest(id=prediction.id, wait=Duration(seconds=LIMIT_S), omit_data=True)
            await stubs.predictions.GetPrediction(asked)
