"""The gRPC server: its address, its limits, its start and its drain.

The service is internal: it knows no users and takes no tokens, that is the edge's matter. So it
binds loopback addresses and Unix sockets only, unless the settings say otherwise.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from datetime import timedelta

import anyio
import grpc
import structlog
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskStatus
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.tailrace.v1 import model_service_pb2, prediction_service_pb2
from protos.tailrace.v1.edge_service_pb2_grpc import add_EdgeServiceServicer_to_server
from protos.tailrace.v1.model_service_pb2_grpc import add_ModelServiceServicer_to_server
from protos.tailrace.v1.prediction_service_pb2_grpc import add_PredictionServiceServicer_to_server
from service.ports.clock import Clock
from service.rpc.boundary import Boundary
from service.rpc.calls import OpenCalls
from service.rpc.edge_servicer import EdgeServicer
from service.rpc.health import HealthServicer
from service.rpc.model_servicer import ModelServicer
from service.rpc.prediction_servicer import PredictionServicer
from service.rpc.reflection import add_reflection
from service.runtime.models import Models
from service.runtime.predictions import Predictions

log = structlog.get_logger()

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Above the largest prompt (4 MiB) with its output; the edge's own limit lies below it."""
MAX_METADATA_BYTES = 16 * 1024
MAX_STREAMS_PER_CONNECTION = 1000
"""A client lets further calls wait in silence, so this is far above what an edge opens."""
MAX_CALLS = 4096
"""Calls in all; further ones are refused with RESOURCE_EXHAUSTED. Admission of predictions is the
queue's: this is a bound for a client gone wild."""
FAREWELL = timedelta(seconds=1)
"""After the drain: for streams to bring out their `completed`, and once more for statuses."""
PING_TOLERANCE = 0.9
"""A ping that arrives a little early is not a strike."""


class CannotListen(Exception):
    """The address cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen, and how to treat peers."""

    host: str = "127.0.0.1"
    """An address, a name, or `unix:<path>`."""
    port: int = 50051
    """0 takes a free one. Unused for a Unix socket."""
    allow_public: bool = False
    """Listen on an address that is not loopback."""
    stall_limit: timedelta = timedelta(seconds=20)
    """How long a write may wait for its reader."""
    keepalive_time: timedelta = timedelta(seconds=20)
    """Silence after which the server pings a client."""
    keepalive_timeout: timedelta = timedelta(seconds=10)
    """How long that ping may stay unanswered: then the connection and its calls end."""
    min_ping_interval: timedelta = timedelta(seconds=10)
    """How often clients may ping, with and without calls."""

    def channel_options(self) -> list[tuple[str, int]]:
        """Return the core's options."""
        return [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
            ("grpc.keepalive_time_ms", _ms(self.keepalive_time)),
            ("grpc.keepalive_timeout_ms", _ms(self.keepalive_timeout)),
            # The core waits for the longer of the two (measured, 1.85.3), and this one is a minute.
            ("grpc.http2.ping_timeout_ms", _ms(self.keepalive_timeout)),
            # Without it a client may ping an idle connection only every two hours.
            ("grpc.keepalive_permit_without_calls", 1),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                _ms(self.min_ping_interval * PING_TOLERANCE),
            ),
            ("grpc.so_reuseport", 0),  # a second service on the port must fail, not share it
        ]

    def address(self) -> str:
        """Return what to bind. Raises CannotListen for a public address that is not allowed."""
        if self.host.startswith("unix:"):
            return self.host
        if not self.allow_public and not _is_loopback(self.host):
            raise CannotListen(
                f"SERVICE_HOST={self.host} is reachable from other machines, and the service asks callers "
                "for no token. Put the edge before it, or set SERVICE_ALLOW_PUBLIC=1 if the network is yours."
            )
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class RpcServer:
    """The server over a runtime. Runs once."""

    def __init__(
        self, predictions: Predictions, models: Models, clock: Clock, options: ServerOptions
    ) -> None:
        self._predictions = predictions
        self._models = models
        self._options = options
        self._clock = clock
        self._files = (prediction_service_pb2.DESCRIPTOR, model_service_pb2.DESCRIPTOR)
        names = [s.full_name for file in self._files for s in file.services_by_name.values()]
        self.calls = OpenCalls(clock, options.stall_limit)
        self.health = HealthServicer(names)
        self._server: grpc.aio.Server | None = None

    async def run(self, *, task_status: TaskStatus[int] = TASK_STATUS_IGNORED) -> None:
        """Serve until `drain` is over or this is cancelled.

        Reports the bound port once calls are taken (0 for a Unix socket).

        Raises:
            CannotListen: the address is taken, unknown, or public without leave.
        """
        server = self._build()
        port = _bind(server, self._options.address())
        await server.start()
        self._server = server
        log.info("rpc_listening", address=_shown(self._options.address(), port))
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.calls.run)
                tasks.start_soon(self.health.run, self._models)
                task_status.started(port)
                await server.wait_for_termination()
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(FAREWELL.total_seconds()):
                await server.stop(0)

    async def drain(self, grace: timedelta) -> None:
        """Turn new work away, let predictions run up to `grace`, then end `run`.

        Streams of what is unfinished then end with DRAINING; their readers resume elsewhere or
        at the next start.
        """
        self.health.drain()
        await self._predictions.drain(grace)
        with anyio.move_on_after(FAREWELL.total_seconds()):
            await self.calls.wait_empty()
        self.calls.end_all()
        self.health.close()
        if self._server is not None:
            await self._server.stop(FAREWELL.total_seconds())

    def _build(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            interceptors=(Boundary(self._clock),),
            options=self._options.channel_options(),
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        predictions = PredictionServicer(self._predictions, self.calls, self._clock)
        add_PredictionServiceServicer_to_server(predictions, server)
        add_ModelServiceServicer_to_server(ModelServicer(self._models), server)
        edges = EdgeServicer(self._predictions, self.calls, self._clock)
        add_EdgeServiceServicer_to_server(edges, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        add_reflection(server, (*self._files, health_pb2.DESCRIPTOR))
        return server


def _bind(server: grpc.aio.Server, address: str) -> int:
    """Bind; a Unix socket is its owner's alone from the moment it exists."""
    mask = os.umask(0o177) if address.startswith("unix:") else None
    try:
        port: int = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}: is it in use?") from error
    finally:
        if mask is not None:
            os.umask(mask)
    return 0 if mask is not None else port


def _shown(address: str, port: int) -> str:
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _ms(span: timedelta) -> int:
    return round(span / timedelta(milliseconds=1))
