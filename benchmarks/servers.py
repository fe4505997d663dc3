"""Owns the processes that are measured: service and edge as users start them, and the two references.

All of them listen on loopback ports of their own and are idle unless a load is on them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmarks.load_plan import ROOT
from tests.support.processes import Edge, Service, running_edge, running_service

START_S = 60
MAX_LINE_BYTES = 64 * 1024


class CannotStart(Exception):
    """A process did not come up; the text says what it wrote."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """A service and an edge before it."""

    service: Service
    edge: Edge

    @property
    def engine_pid(self) -> int:
        """The engine's own process."""
        return self.service.engine_pids()[0]

    def watched(self) -> dict[str, int]:
        """Return the three processes by name."""
        return {"service": self.service.pid, "edge": self.edge.pid, "engine": self.engine_pid}


@asynccontextmanager
async def running_bridge(folder: Path, **settings: str) -> AsyncGenerator[Bridge, None]:
    """Run a service with `settings` and an edge with none but its defaults, each with its log.

    Raises CannotStart.
    """
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        try:
            service = await stack.enter_async_context(running_service(folder, **settings))
            edge = await stack.enter_async_context(running_edge(folder, service.address))
        except (TimeoutError, AssertionError, ExceptionGroup) as error:
            raise CannotStart(f"service and edge did not come up:\n{await _logs(folder)}") from error
        yield Bridge(service, edge)


async def _logs(folder: Path) -> str:
    """Return the last lines of what they wrote."""
    texts = [await path.read_text() async for path in anyio.Path(folder).glob("*.log")]
    return "".join(text[-2000:] for text in texts)


@dataclass(frozen=True, slots=True)
class Reference:
    """A server to compare with."""

    pid: int
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    """What it wants in every request."""


@asynccontextmanager
async def running_reference(module: str, *arguments: str) -> AsyncGenerator[Reference, None]:
    """Run `python -m module`, whose first line of output is JSON: its url, and headers if it needs any.

    It ends when its standard input does, so also when this process is killed.

    Raises CannotStart.
    """
    command = [sys.executable, "-m", module, *arguments]
    process = await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, cwd=ROOT, start_new_session=True
    )
    try:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            with anyio.fail_after(START_S):
                ready = json.loads(await lines.receive_until(b"\n", MAX_LINE_BYTES))
        except (TimeoutError, anyio.EndOfStream, anyio.IncompleteRead, ValueError) as error:
            raise CannotStart(f"{' '.join(command[1:])} did not come up: {error!r}") from error
        yield Reference(process.pid, ready["url"], ready.get("headers", {}))
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(START_S):
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
            await process.aclose()
