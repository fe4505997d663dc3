"""Service and edge as users start them: real processes, real sockets, ready when they say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceStub
from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceStub
from tests.support.ports import free_port

READY_S = 60
EXIT_S = 40
CHANNEL_OPTIONS = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
"""Processes come back on their port at once, so a client may look often."""
ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """One `python -m <module>`, started, killed and started again on the same port."""

    def __init__(self, module: str, environment: Mapping[str, str], log_path: Path) -> None:
        self.module = module
        self.port = free_port()
        self.log_path = log_path
        self._environment = dict(environment)
        self._process: anyio.abc.Process | None = None

    @property
    def pid(self) -> int:
        """The running process's id."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that it has written so far, over all its lives."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    async def start(self) -> None:
        """Start it; it need not be ready yet."""
        prefix = self.module.upper()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SERVICE_", "EDGE_"))}
        environment = {
            **inherited,
            f"{prefix}_PORT": str(self.port),
            f"{prefix}_LOG_FORMAT": "json",
            **self._environment,
        }
        with self.log_path.open("ab") as log:
            self._process = await anyio.open_process(
                [sys.executable, "-m", self.module],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """Kill it as the kernel would when memory runs out."""
        await self.stop_with(signal.SIGKILL)

    async def kill_and_start(self) -> None:
        """Kill it and start it again."""
        await self.kill()
        await self.start()

    async def stop_with(self, number: signal.Signals) -> int:
        """Send a signal and return the exit status once it is gone."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        with anyio.fail_after(EXIT_S):
            return await self.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal without waiting for anything."""
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        """Return the exit status once it is gone."""
        assert self._process is not None
        return await self._process.wait()

    async def close(self) -> None:
        """End it, whatever it does."""
        if self._process is not None and self._process.returncode is None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(EXIT_S):
                self._process.kill()
                await self._process.wait()


class Service(ServerProcess):
    """The gRPC service on a model of its own folder."""

    MODEL = "local/smollm2-135m-instruct"

    def __init__(self, folder: Path, **settings: str) -> None:
        defaults = {
            "SERVICE_ENGINE": "scripted",
            "SERVICE_STORE_PATH": str(folder / "tailrace.db"),
            "SERVICE_DRAIN": "5",
            "SERVICE_ENGINE_CONTEXT_TOKENS": "200000",
        }
        if settings.get("engine") == "llama_cpp":
            del defaults["SERVICE_ENGINE_CONTEXT_TOKENS"]
        given = {f"SERVICE_{name.upper()}": value for name, value in settings.items()}
        super().__init__("service", {**defaults, **given}, folder / "service.log")

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self.port}"

    async def ready(self) -> None:
        """Wait until it serves: its health says so."""
        with anyio.fail_after(READY_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._fail_at_exit)
                await self._serving()
                tasks.cancel_scope.cancel()

    async def _fail_at_exit(self) -> None:
        await self.wait()
        raise AssertionError(f"the service ended:\n{self.log}")

    async def _serving(self) -> None:
        request = health_pb2.HealthCheckRequest()
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            while True:
                call = health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True)
                try:
                    while (answer := await call.read()) is not grpc.aio.EOF:
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return
                except grpc.aio.AioRpcError:
                    continue
                finally:
                    call.cancel()

    async def kill_engines(self) -> None:
        """Kill its engines as the kernel would, and wait until they are gone."""
        pids = self.engine_pids()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        while any(alive(pid) for pid in pids):
            await anyio.sleep(0.005)  # not our children: there is nothing to wait on

    def engine_pids(self) -> list[int]:
        """Return the processes of its engines."""
        return children(self.pid)


class Edge(ServerProcess):
    """The HTTP edge before a service."""

    def __init__(self, folder: Path, service_address: str, **settings: str) -> None:
        defaults = {
            "EDGE_SERVICE_ADDRESS": service_address,
            "EDGE_STREAM_SECRET": "tests only, but long enough to be one",
        }
        given = {f"EDGE_{name.upper()}": value for name, value in settings.items()}
        super().__init__("edge", {**defaults, **given}, folder / "edge.log")

    @property
    def url(self) -> str:
        """The base of its URLs."""
        return f"http://127.0.0.1:{self.port}"

    async def ready(self) -> None:
        """Wait until it answers /readyz with 200."""
        with anyio.fail_after(READY_S):
            async with httpx.AsyncClient() as client:
                while True:
                    assert self._process is not None
                    if self._process.returncode is not None:
                        raise AssertionError(f"the edge ended:\n{self.log}")
                    try:
                        if (await client.get(f"{self.url}/readyz")).status_code == 200:
                            return
                    except httpx.TransportError:
                        pass
                    await anyio.sleep(0.05)  # the port gives no event to wait for


def children(pid: int) -> list[int]:
    """Return the ids of a process's children, threads included."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class Stubs:
    """A plain gRPC client."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.predictions = PredictionServiceStub(channel)
        self.models = ModelServiceStub(channel)


@asynccontextmanager
async def client(address: str) -> AsyncGenerator[Stubs, None]:
    """Open a client to a service."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        yield Stubs(channel)


@asynccontextmanager
async def running_service(folder: Path, **settings: str) -> AsyncGenerator[Service, None]:
    """Run a service until the block ends."""
    service = Service(folder, **settings)
    try:
        await service.start()
        await service.ready()
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def running_edge(folder: Path, service_address: str, **settings: str) -> AsyncGenerator[Edge, None]:
    """Run an edge until the block ends."""
    edge = Edge(folder, service_address, **settings)
    try:
        await edge.start()
        await edge.ready()
        yield edge
    finally:
        await edge.close()
