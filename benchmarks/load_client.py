"""`python -m benchmarks.load_client`: read a `Plan` from standard input, print a `LoadReport`.

Every stream is two requests on one connection in Replicate's dialect (create, then its stream), as
official clients make them, and one in the chat dialect of llama.cpp's own server.
"""

from __future__ import annotations

import os
import re
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import anyio
import msgspec
import uvloop

from benchmarks.connection import Connection, Marks
from benchmarks.figures import percentile
from benchmarks.load_plan import LoadFailed, LoadReport, Plan, StreamReport, WindowReport
from benchmarks.machine import cpu_of_all, cpu_us

REPLICATE = Marks(output=b"event: output", end=b"event: done")
CHAT = Marks(output=b'"content":"', end=b"[DONE]", keep=True)
_CHAT_COUNTS = (re.compile(rb'"prompt_tokens":(\d+)'), re.compile(rb'"completion_tokens":(\d+)'))


class Urls(msgspec.Struct):
    """What we use of a prediction's URLs."""

    get: str
    stream: str


class Metrics(msgspec.Struct):
    """What we use of a prediction's metrics."""

    input_token_count: int = 0
    output_token_count: int = 0


class Created(msgspec.Struct):
    """What we use of a prediction."""

    status: str
    urls: Urls
    metrics: Metrics
    error: str | None = None


@dataclass(slots=True)
class Followed:
    """A stream that has been read to its end."""

    connection: Connection
    sent_s: float
    record_path: str = ""
    """Where its counts are asked for; empty where the stream has told them."""


async def follow_prediction(plan: Plan, connection: Connection, body: bytes) -> Followed:
    """Create a prediction and read its stream."""
    sent_s = time.monotonic()
    connection.send("POST", "/v1/predictions", plan.headers, body)
    created = msgspec.json.decode(await connection.answer(), type=Created)
    connection.expect(replace(REPLICATE, piece=plan.piece_mark.encode()))
    connection.send("GET", path_of(created.urls.stream), {**plan.headers, "accept": "text/event-stream"})
    await connection.follow()
    return Followed(connection, sent_s, path_of(created.urls.get))


async def follow_chat(plan: Plan, connection: Connection, body: bytes) -> Followed:
    """Ask for a chat completion and read its stream."""
    connection.expect(replace(CHAT, piece=plan.piece_mark.encode()))
    sent_s = time.monotonic()
    connection.send("POST", "/v1/chat/completions", {**plan.headers, "accept": "text/event-stream"}, body)
    await connection.follow()
    return Followed(connection, sent_s)


async def report_on(plan: Plan, followed: Followed) -> StreamReport:
    """Return what is known of a stream, its counts as the server tells them. Raises LoadFailed."""
    connection = followed.connection
    connection.close()
    if followed.record_path:
        asking = await Connection.open(plan.base_url)
        asking.send("GET", followed.record_path, plan.headers)
        final = msgspec.json.decode(await asking.answer(), type=Created)
        asking.close()
        if final.status != "succeeded":
            raise LoadFailed(f"a prediction is {final.status}: {final.error}")
        counts = final.metrics.input_token_count, final.metrics.output_token_count
    else:
        found = [pattern.findall(connection.received) for pattern in _CHAT_COUNTS]
        if not all(found):
            raise LoadFailed("the chat stream has no usage")
        counts = int(found[0][-1]), int(found[1][-1])
    if plan.piece_mark and connection.pieces != counts[1]:
        raise LoadFailed(f"{connection.pieces} tokens arrived, the server counts {counts[1]}")
    return StreamReport(followed.sent_s, connection.first_s, connection.last_s, connection.events, *counts)


async def watch(plan: Plan, connections: Sequence[Connection]) -> WindowReport:
    """Measure the steady state. Raises LoadFailed when a stream ends in it."""
    for connection in connections:
        await connection.begun.wait()
    await anyio.sleep(plan.settle_s)
    samples: array[float] = array("d")
    tokens, before, began_s = _pieces(connections), cpu_of_all(plan.watched), time.monotonic()
    for connection in connections:
        connection.samples = samples
    await anyio.sleep(plan.window_s)
    after, ended_s = cpu_of_all(plan.watched), time.monotonic()
    tokens = _pieces(connections) - tokens
    for connection in connections:
        connection.samples = None
        if ended_s - connection.last_s > 1:
            raise LoadFailed("a stream ended, or stood still, within the window")
    late_ms = [at % plan.tick_s * 1000 for at in samples] if plan.tick_s else []
    return WindowReport(
        seconds=ended_s - began_s,
        tokens=tokens,
        cpu_us={name: after[name] - before[name] for name in after},
        lateness_p50_ms=percentile(late_ms, 50),
        lateness_p99_ms=percentile(late_ms, 99),
    )


async def run(plan: Plan) -> LoadReport:
    """Carry out the plan."""
    follow = follow_prediction if plan.dialect == "replicate" else follow_chat
    connections = [await Connection.open(plan.base_url) for _ in plan.bodies]
    bodies = [msgspec.json.encode(body) for body in plan.bodies]
    followed: list[Followed] = []
    windows: list[WindowReport] = []

    async def one(place: int) -> None:
        followed.append(await follow(plan, connections[place], bodies[place]))

    async def window() -> None:
        windows.append(await watch(plan, connections))

    before, own_before = cpu_of_all(plan.watched), cpu_us(os.getpid())
    async with anyio.create_task_group() as tasks:
        for place in range(len(bodies)):
            tasks.start_soon(one, place)
        if plan.window_s:
            tasks.start_soon(window)
    after, own_after = cpu_of_all(plan.watched), cpu_us(os.getpid())
    return LoadReport(
        streams=[await report_on(plan, one) for one in followed],
        cpu_us={name: after[name] - before[name] for name in after},
        client_cpu_us=own_after - own_before,
        window=windows[0] if windows else None,
    )


def _pieces(connections: Sequence[Connection]) -> int:
    return sum(connection.pieces for connection in connections)


def path_of(url: str) -> str:
    """Return the path of a URL."""
    return urlsplit(url).path


def main() -> None:
    """Read, run, print; exit 1 with a reason on standard error."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    try:
        report = anyio.run(run, plan, backend_options={"loop_factory": uvloop.new_event_loop})
    except* (LoadFailed, OSError) as group:
        sys.exit("\n".join(sorted({str(error) for error in group.exceptions})))
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
