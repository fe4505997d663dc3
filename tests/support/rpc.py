"""A real gRPC server over the fake runtime, and what tests need to talk to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel
import grpc
from google.rpc import error_details_pb2, status_pb2

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceStub
from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceStub
from service.adapters.system_clock import SystemClock
from service.rpc.server import RpcServer, ServerOptions
from tests.support.fake_runtime import FakeModels, FakePredictions, FakeWebhooks

# Small windows: a client that does not read then blocks the server after 64 KiB, not 4 MiB.
SMALL_WINDOWS = (("grpc.http2.bdp_probe", 0),)


@dataclass
class Rpc:
    """What a test works with."""

    server: RpcServer
    runtime: FakePredictions
    webhooks: FakeWebhooks
    models: FakeModels
    channel: grpc.aio.Channel
    port: int
    stopped: anyio.Event
    """Set when `run` has returned."""

    @property
    def predictions(self) -> Any:
        """The stub; untyped, as the generated one claims to be synchronous for any channel."""
        return PredictionServiceStub(self.channel)

    @property
    def model_stub(self) -> Any:
        """The other stub."""
        return ModelServiceStub(self.channel)


async def open_calls(rpc: Rpc, count: int) -> None:
    """Wait until so many calls are open on the server."""
    while len(rpc.server.calls) < count:
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(
    options: ServerOptions | None = None, channel_options: Sequence[tuple[str, int]] = SMALL_WINDOWS
) -> AsyncGenerator[Rpc, None]:
    """Serve on a free port until the block ends."""
    runtime, models, webhooks = FakePredictions(), FakeModels(), FakeWebhooks()
    options = options or ServerOptions(port=0)
    # The fakes have the runtime's methods; they are no subclasses, so that nothing real is inherited.
    server = RpcServer(runtime, webhooks, models, SystemClock(), options)  # type: ignore[arg-type]
    stopped = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def run(*, task_status: anyio.abc.TaskStatus[int]) -> None:
            await server.run(task_status=task_status)
            stopped.set()

        port = await tasks.start(run)
        target = options.host if options.host.startswith("unix:") else f"127.0.0.1:{port}"
        async with grpc.aio.insecure_channel(target, options=channel_options) as channel:
            yield Rpc(server, runtime, webhooks, models, channel, port, stopped)
        tasks.cancel_scope.cancel()


def predict_request(prompt: str = "hello", **fields: Any) -> spb.PredictRequest:
    """Return the least request."""
    return spb.PredictRequest(model="local/test", generation=pb.GenerationRequest(prompt=prompt), **fields)


@dataclass(frozen=True)
class Failure:
    """How a call failed, read as a client in any language would."""

    code: grpc.StatusCode
    message: str
    info: error_details_pb2.ErrorInfo | None
    bad: error_details_pb2.BadRequest | None
    retry: error_details_pb2.RetryInfo | None

    @property
    def reason(self) -> str:
        """The ErrorInfo's reason."""
        return self.info.reason if self.info else ""


async def failure(call: Any) -> Failure:
    """Read a call to its end, which must be a failure."""
    code, message = await call.code(), await call.details()
    assert code is not grpc.StatusCode.OK
    found: dict[str, Any] = {}
    for key, value in await call.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for packed in status_pb2.Status.FromString(value).details:
                name = packed.TypeName().rpartition(".")[2]
                assert name not in found
                found[name] = getattr(error_details_pb2, name)()
                packed.Unpack(found[name])
    return Failure(code, message, found.get("ErrorInfo"), found.get("BadRequest"), found.get("RetryInfo"))


async def read_all(call: Any) -> list[pb.PredictionEvent]:
    """Return all messages up to an end that is OK."""
    messages = []
    while (message := await call.read()) is not grpc.aio.EOF:
        messages.append(message)
    return messages
