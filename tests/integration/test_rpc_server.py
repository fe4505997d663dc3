"""The server itself: addresses, health, reflection, connections, drain."""

from __future__ import annotations

import os
import stat
from datetime import timedelta

import anyio
import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.adapters.system_clock import SystemClock
from service.domain.events import FinishReason, Status
from service.rpc.server import CannotListen, RpcServer, ServerOptions
from service.runtime.models import ModelState
from tests.support.fake_runtime import FakeModels, FakePredictions, FakeWebhooks
from tests.support.rpc import Rpc, failure, open_calls, predict_request, read_all, serving

pytestmark = pytest.mark.anyio

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ["", "tailrace.v1.PredictionService", "tailrace.v1.ModelService"]


# ----------------------------------------------------------------------------------------- health


async def test_health_follows_the_first_load_and_the_drain_but_no_engine_restart():
    with anyio.fail_after(10):
        async with serving() as rpc:
            stub = health_pb2_grpc.HealthStub(rpc.channel)
            watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in NAMES]
            for watch in watches:
                while (await watch.read()).status != SERVING:
                    pass
            rpc.models.become(ModelState.RESTARTING)
            rpc.models.become(ModelState.FAILED)
            for name in NAMES:
                assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rpc.server.drain, timedelta(seconds=5))
                for watch in watches:
                    assert (await watch.read()).status == NOT_SERVING
                    assert await watch.read() is grpc.aio.EOF
            await rpc.stopped.wait()


async def test_nothing_is_serving_before_a_model_was_loaded():
    with anyio.fail_after(10):
        models = FakeModels()
        models.state = ModelState.LOADING
        server = RpcServer(FakePredictions(), FakeWebhooks(), models, SystemClock(), ServerOptions(port=0))
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(server.run)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                listed = (await stub.List(health_pb2.HealthListRequest())).statuses
                assert {name: answer.status for name, answer in listed.items()} == dict.fromkeys(
                    NAMES, NOT_SERVING
                )
                watch = stub.Watch(health_pb2.HealthCheckRequest())
                assert (await watch.read()).status == NOT_SERVING
                models.become(ModelState.READY)
                assert (await watch.read()).status == SERVING
                watch.cancel()
            tasks.cancel_scope.cancel()


async def test_an_unknown_service_is_not_found_but_may_be_watched():
    with anyio.fail_after(10):
        async with serving() as rpc:
            stub = health_pb2_grpc.HealthStub(rpc.channel)
            unknown = health_pb2.HealthCheckRequest(service="no.such")
            assert (await failure(stub.Check(unknown))).code is grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(unknown)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
            watch.cancel()


# ------------------------------------------------------------------------------------- reflection


async def ask(rpc: Rpc, version: str, **question: object) -> reflection_pb2.ServerReflectionResponse:
    method = rpc.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (answer,) = [a async for a in method(iter([reflection_pb2.ServerReflectionRequest(**question)]))]
    return answer


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_lists_all_services_and_describes_each(version: str):
    with anyio.fail_after(10):
        async with serving() as rpc:
            answer = await ask(rpc, version, list_services="")
            names = {service.name for service in answer.list_services_response.service}
            assert names == {
                "tailrace.v1.PredictionService",
                "tailrace.v1.ModelService",
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
            }
            for name in names:
                answer = await ask(rpc, version, file_containing_symbol=name)
                files = [
                    FileDescriptorProto.FromString(data)
                    for data in answer.file_descriptor_response.file_descriptor_proto
                ]
                found = {f"{file.package}.{service.name}" for file in files for service in file.service}
                assert name in found
                imported = {path for file in files for path in file.dependency}
                assert imported <= {file.name for file in files}


# ---------------------------------------------------------------------------------------- address


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_address_others_can_reach_needs_leave(host: str):
    with pytest.raises(CannotListen, match="SERVICE_ALLOW_PUBLIC=1"):
        ServerOptions(host=host).address()
    assert ServerOptions(host=host, allow_public=True, port=1).address().endswith(":1")


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1:7"), ("::1", "[::1]:7"), ("localhost", "localhost:7"), ("unix:/x", "unix:/x")],
)
def test_loopback_and_unix_sockets_need_none(host: str, address: str):
    assert ServerOptions(host=host, port=7).address() == address


async def test_a_unix_socket_is_its_owners_alone(tmp_path):
    path = tmp_path / "tailrace.sock"
    with anyio.fail_after(10):
        async with serving(ServerOptions(host=f"unix:{path}")) as rpc:
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            await rpc.predictions.ListPredictions(spb.ListPredictionsRequest())
            assert rpc.port == 0


async def test_a_port_in_use_is_a_clear_error():
    with anyio.fail_after(10):
        async with serving() as rpc:
            options = ServerOptions(port=rpc.port)
            second = RpcServer(FakePredictions(), FakeWebhooks(), FakeModels(), SystemClock(), options)
            with pytest.raises(CannotListen, match=f"127.0.0.1:{rpc.port}"):
                await second.run()


# ------------------------------------------------------------------------------------ connections


def test_clients_may_ping_every_ten_seconds_with_and_without_calls():
    options = dict(ServerOptions().channel_options())
    assert options["grpc.keepalive_permit_without_calls"] == 1
    assert options["grpc.http2.min_ping_interval_without_data_ms"] == 9000
    assert (options["grpc.keepalive_time_ms"], options["grpc.keepalive_timeout_ms"]) == (20_000, 10_000)
    assert options["grpc.http2.ping_timeout_ms"] == 10_000
    assert options["grpc.so_reuseport"] == 0


async def test_a_client_that_pings_as_often_as_allowed_outlives_one_that_pings_too_often():
    pinging = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1)]
    pinging += [("grpc.http2.max_pings_without_data", 0)]
    allowed = ServerOptions(port=0, min_ping_interval=timedelta(milliseconds=500))
    too_often = ServerOptions(port=0, min_ping_interval=timedelta(seconds=5))
    with anyio.fail_after(20):
        async with serving(allowed, pinging) as kept, serving(too_often, pinging) as lost:
            calls = [rpc.predictions.Predict(predict_request()) for rpc in (kept, lost)]
            for call in calls:
                await call.read()
            got = await failure(calls[1])
            assert (got.code, got.message) == (grpc.StatusCode.UNAVAILABLE, "Too many pings")
            assert not calls[0].done()
            kept.runtime.end("p0", Status.CANCELED, FinishReason.CANCELED)
            assert [m.sequence for m in await read_all(calls[0])] == [2]


class DroppingProxy:
    """Passes bytes on to a port, until it silently drops all of them, like a pulled cable."""

    def __init__(self, port: int) -> None:
        self.dropping = False
        self._port = port

    async def serve(self, *, task_status: anyio.abc.TaskStatus[int]) -> None:
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            task_status.started(listener.extra(anyio.abc.SocketAttribute.local_port))
            await listener.serve(self._connect)

    async def _connect(self, client: anyio.abc.SocketStream) -> None:
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", self._port) as server,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._pass, client, server)
            tasks.start_soon(self._pass, server, client)

    async def _pass(self, source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
        try:
            async for data in source:
                if not self.dropping:
                    await target.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


async def test_a_dropped_network_counts_as_the_caller_gone_within_the_keepalive():
    second = timedelta(seconds=1)
    options = ServerOptions(port=0, keepalive_time=second, keepalive_timeout=second)
    with anyio.fail_after(15):
        async with serving(options) as rpc, anyio.create_task_group() as tasks:
            proxy = DroppingProxy(rpc.port)
            port = await tasks.start(proxy.serve)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                method = channel.unary_stream(
                    "/tailrace.v1.PredictionService/Predict",
                    request_serializer=spb.PredictRequest.SerializeToString,
                )
                call = method(predict_request())
                await call.read()
                proxy.dropping = True
                await rpc.runtime.until_left()
                assert rpc.runtime.left == ["p0"]
                call.cancel()
            tasks.cancel_scope.cancel()


# ------------------------------------------------------------------------------------------ drain


async def test_a_drain_lets_running_streams_come_to_their_end():
    with anyio.fail_after(10):
        async with serving() as rpc, anyio.create_task_group() as tasks:
            call = rpc.predictions.Predict(predict_request())
            await call.read()
            tasks.start_soon(rpc.server.drain, timedelta(seconds=60))
            while not rpc.runtime.draining:
                await anyio.lowlevel.checkpoint()
            late = await failure(rpc.predictions.Predict(predict_request()))
            assert (late.code, late.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert late.retry is not None
            rpc.runtime.end("p0", Status.CANCELED, FinishReason.CANCELED)
            assert [m.sequence for m in await read_all(call)] == [2]
            await rpc.stopped.wait()


async def test_a_drain_ends_what_is_left_with_a_reason():
    with anyio.fail_after(10):
        async with serving() as rpc, anyio.create_task_group() as tasks:
            stream = rpc.predictions.Predict(predict_request())
            await stream.read()
            wait = rpc.predictions.GetPrediction(spb.GetPredictionRequest(id="p0", wait=Duration(seconds=60)))
            await open_calls(rpc, 2)
            tasks.start_soon(rpc.server.drain, timedelta(0))
            for call in (stream, wait):
                got = await failure(call)
                assert (got.code, got.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            await rpc.stopped.wait()
            assert rpc.runtime.open_cursors == 0
