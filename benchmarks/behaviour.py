"""What happens around a stream: memory of idle ones, how fast a slot is free, how fast a stream goes on.

All through the edge, with the scripted engine, so without the time that a real model takes to load or
to finish a step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio
import httpx
import msgspec

from benchmarks.connection import Connection
from benchmarks.figures import Amount, Findings, quotient
from benchmarks.load_client import REPLICATE, Created, path_of
from benchmarks.machine import resident_bytes
from benchmarks.servers import Bridge, running_bridge
from tests.support.processes import Service

Say = Callable[[str], None]
TOKEN_MS = 20
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class BehaviourSize:
    """How much is measured."""

    idle_streams: int = 200
    cancels: int = 7
    kills: int = 3


QUICK = BehaviourSize(idle_streams=100, cancels=3, kills=1)


async def measure(size: BehaviourSize, folder: Path, say: Say) -> Findings:
    """Measure all three on one bridge with one slot."""
    async with running_bridge(folder / "behaviour", engine_slots="1", readers_limit="1000") as bridge:
        async with httpx.AsyncClient(base_url=bridge.edge.url, timeout=PATIENCE_S) as client:
            caller = _Caller(bridge, client)
            say("behaviour: cancel")
            cancels = tuple([await _cancel_ms(caller) for _ in range(size.cancels)])
            say("behaviour: engine killed")
            kills = tuple([await _kill_s(caller) for _ in range(size.kills)])
            say(f"behaviour: {size.idle_streams} idle streams")
            memory = await _idle_kib(caller, size.idle_streams)
    return Findings(
        amounts=(
            Amount("cancel sent → the next prediction's first token", "ms", cancels),
            Amount("engine killed → the stream's next token", "s", kills),
            Amount("memory per idle SSE stream: edge", "KiB", (memory["edge"],)),
            Amount("memory per idle SSE stream: service", "KiB", (memory["service"],)),
        )
    )


@dataclass(frozen=True, slots=True)
class _Caller:
    bridge: Bridge
    client: httpx.AsyncClient

    async def create(self, **script: object) -> Created:
        """Create a prediction that says the script."""
        prompt = f"script:{msgspec.json.encode(script).decode()}"
        given = {"version": Service.MODEL, "input": {"prompt": prompt, "max_tokens": 4096}}
        answer = (await self.client.post("/v1/predictions", json=given)).raise_for_status()
        return msgspec.json.decode(answer.content, type=Created)

    async def open(self, created: Created) -> Connection:
        """Open a prediction's stream, without waiting for anything."""
        connection = await Connection.open(self.bridge.edge.url)
        connection.expect(REPLICATE)
        connection.send("GET", path_of(created.urls.stream), {"accept": "text/event-stream"})
        return connection

    async def cancel(self, created: Created) -> None:
        """Cancel a prediction."""
        (await self.client.post(f"{created.urls.get}/cancel")).raise_for_status()


async def _cancel_ms(caller: _Caller) -> float:
    """Return the time from a cancel to the first token of the prediction that waited for the slot."""
    holder = await caller.create(pieces=[" token"], repeat=1000, delay_ms=TOKEN_MS)
    held = await caller.open(holder)
    await held.begun.wait()
    waiting = await caller.open(await caller.create(pieces=[" token"]))
    await anyio.sleep(0.1)
    began_s = time.monotonic()
    await caller.cancel(holder)
    with anyio.fail_after(PATIENCE_S):
        await waiting.follow()
    for connection in (held, waiting):
        connection.close()
    return (waiting.first_s - began_s) * 1000


async def _kill_s(caller: _Caller) -> float:
    """Return how long a stream stands still after its engine was killed."""
    connection = await caller.open(await caller.create(pieces=[" token"], repeat=40, delay_ms=TOKEN_MS))
    await connection.begun.wait()
    await anyio.sleep(10 * TOKEN_MS / 1000)
    began_s = time.monotonic()
    os.kill(caller.bridge.engine_pid, signal.SIGKILL)
    await anyio.sleep(0.05)  # what the dead engine had said arrives; a new one takes longer to start
    connection.begun, connection.events = anyio.Event(), 0
    with anyio.fail_after(PATIENCE_S):
        await connection.follow()
    connection.close()
    return connection.first_s - began_s


async def _idle_kib(caller: _Caller, streams: int) -> dict[str, float]:
    """Return what one more silent stream adds to each process: the growth over all, divided."""
    created = await caller.create(pieces=[" token"], first_delay_ms=600_000)
    warm = [await caller.open(created) for _ in range(streams // 10)]
    await anyio.sleep(1)
    pids = {"edge": caller.bridge.edge.pid, "service": caller.bridge.service.pid}
    before = {name: resident_bytes(pid) for name, pid in pids.items()}
    opened = [await caller.open(created) for _ in range(streams)]
    await anyio.sleep(1.5)
    after = {name: resident_bytes(pid) for name, pid in pids.items()}
    for connection in (*warm, *opened):
        connection.close()
    await caller.cancel(created)
    return {name: quotient(after[name] - before[name], streams * 1024) for name in pids}
