"""`python -m benchmarks.one_process`: what the bridge is compared with, one process without gRPC.

Starlette on uvicorn with httptools and uvloop, a `StreamingResponse` a stream, and a step engine in
the same event loop. It says the pieces of the same scripts as the scripted engine, at ticks of the
same clock, in the same frames. It has nothing else: no log, no resuming, no keep-alive, no limits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edge.protocol import sse
from edge.protocol.event_ids import format_id

MARK = "script:"


@dataclass(slots=True)
class Job:
    """One prediction."""

    id: str
    pieces: list[str]
    total: int
    created_s: int
    said: int = 0
    waiting: list[str] = field(default_factory=list)
    """Said and not yet sent."""
    news: anyio.Event = field(default_factory=anyio.Event)

    def step(self) -> None:
        """Say the next piece."""
        self.waiting.append(self.pieces[self.said % len(self.pieces)])
        self.said += 1
        self.news.set()


class StepEngine:
    """Gives every running job one piece a step."""

    def __init__(self, rate: float) -> None:
        """`rate` is in steps a second; 0 steps as fast as the loop turns."""
        self._rate = rate
        self._running: list[Job] = []
        self._arrived = anyio.Event()

    def start(self, job: Job) -> None:
        """Run a job from the next step on."""
        self._running.append(job)
        self._arrived.set()

    async def run(self) -> None:
        """Step until cancelled."""
        while True:
            if not self._running:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            await anyio.sleep(self._pause_s())
            for job in self._running:
                job.step()
            self._running = [job for job in self._running if job.said < job.total]

    def _pause_s(self) -> float:
        return 1 / self._rate - time.monotonic() % (1 / self._rate) if self._rate else 0.0


class Predictions:
    """The three routes of Replicate's API that the load client uses."""

    def __init__(self, engine: StepEngine, base_url: str) -> None:
        self._engine = engine
        self._base = base_url
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count(1)

    async def create(self, request: Request) -> Response:
        """Start a prediction."""
        given = (await request.json())["input"]
        script = json.loads(given["prompt"].partition(MARK)[2])
        job = Job(
            str(next(self._numbers)),
            script["pieces"],
            min(given["max_tokens"], len(script["pieces"]) * script["repeat"]),
            int(time.time()),
        )
        self._jobs[job.id] = job
        self._engine.start(job)
        return self._answer(job, 201)

    async def get(self, request: Request) -> Response:
        """Return a prediction's state and counts."""
        return self._answer(self._jobs[request.path_params["id"]], 200)

    async def stream(self, request: Request) -> Response:
        """Stream a prediction."""
        frames = _frames(self._jobs[request.path_params["id"]])
        headers = {name.decode(): value.decode() for name, value in sse.RESPONSE_HEADERS}
        return StreamingResponse(frames, headers=headers)

    def _answer(self, job: Job, status: int) -> Response:
        body = {
            "status": "succeeded" if job.said >= job.total else "starting",
            "urls": {name: f"{self._base}/v1/{name}/{job.id}" for name in ("get", "stream")},
            "metrics": {"output_token_count": job.said},
        }
        return Response(msgspec.json.encode(body), status, media_type="application/json")


async def _frames(job: Job) -> AsyncGenerator[bytes, None]:
    sequence = 2  # an edge's first output is the third entry of its log
    yield sse.COMMENT
    while True:
        if not job.waiting:
            if job.said >= job.total:
                break
            job.news = anyio.Event()
            await job.news.wait()
        pieces, job.waiting = job.waiting, []
        sequence += len(pieces)
        yield sse.encode_event("output", format_id(job.created_s, sequence), "".join(pieces))
    yield sse.encode_event("done", format_id(job.created_s, sequence + 1), "{}")


def create_app(engine: StepEngine, base_url: str) -> Starlette:
    """Return the application."""
    predictions = Predictions(engine, base_url)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None, None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            yield
            tasks.cancel_scope.cancel()

    return Starlette(
        routes=[
            Route("/v1/predictions", predictions.create, methods=["POST"]),
            Route("/v1/get/{id}", predictions.get),
            Route("/v1/stream/{id}", predictions.stream),
        ],
        lifespan=lifespan,
    )


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="benchmarks.one_process", description=__doc__)
    parser.add_argument("--rate", type=float, default=0, help="steps a second; 0 for no pacing")
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = create_app(StepEngine(arguments.rate), url)
    config = uvicorn.Config(
        app, http="httptools", loop="uvloop", ws="none", log_config=None, access_log=False
    )
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_input, daemon=True).start()
    uvicorn.Server(config).run(sockets=[listener])


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
