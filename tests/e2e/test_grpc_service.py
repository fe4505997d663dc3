"""The service as a process, seen by a plain gRPC client: streams, slots, loss of engine and service."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import anyio
import grpc
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import CountTokensRequest, GetModelRequest
from tests.support.processes import Service, Stubs, alive, client, running_service
from tests.support.streams import Log, create, disturb, follow

pytestmark = pytest.mark.anyio
MODEL = Service.MODEL
KILLS = 20


def script(**fields: object) -> pb.GenerationRequest:
    """Return a request whose prompt tells the scripted engine what to do."""
    return pb.GenerationRequest(
        prompt="script:" + json.dumps(fields), stopping=pb.Stopping(max_tokens=100_000)
    )


def words(count: int, **fields: object) -> tuple[pb.GenerationRequest, str]:
    """Return a request for numbered words, and the text that must come."""
    pieces = [f"{n} " for n in range(count)]
    return script(pieces=pieces, **fields), "".join(pieces)


async def cancel(stubs: Stubs, prediction_id: str) -> None:
    """Cancel a prediction."""
    await stubs.predictions.CancelPrediction(rpc.CancelPredictionRequest(id=prediction_id))


async def free_slots(stubs: Stubs) -> int:
    """Return the model's free slots."""
    model = await stubs.models.GetModel(GetModelRequest(name=MODEL), wait_for_ready=True)
    return model.load.slots - model.load.running


async def until_free(stubs: Stubs, slots: int) -> None:
    """Wait until so many slots are free and nobody waits for one."""
    with anyio.fail_after(10):
        while await free_slots(stubs) != slots:
            await anyio.lowlevel.checkpoint()


async def test_predict_streams_accepted_started_output_completed(tmp_path: Path) -> None:
    generation, text = words(50)
    with anyio.fail_after(60):
        async with running_service(tmp_path) as service, client(service.address) as stubs:
            log = Log()
            async for event in stubs.predictions.Predict(
                rpc.PredictRequest(model=MODEL, generation=generation)
            ):
                log.take(event)
            assert log.text == text
            assert log.end is not None and log.end.status == pb.STATUS_SUCCEEDED
            stored = await stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=log.id))
            assert "".join(stored.output) == text
            assert stored.usage.output_tokens == log.end.usage.output_tokens == 51
            counted = await stubs.models.CountTokens(
                CountTokensRequest(model=MODEL, prompt=generation.prompt)
            )
            assert counted.input_tokens == stored.usage.input_tokens


@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
@pytest.mark.parametrize("going", ["cancel", "deadline", "channel"])
async def test_a_predict_caller_that_goes_away_frees_its_slot(tmp_path: Path, phase: str, going: str) -> None:
    silent = {"prefill_ms": 60_000, "prefill_tokens": 10} if phase == "prefill" else {}
    generation = script(pieces=["a "], repeat=5000, delay_ms=20, **silent)
    with anyio.fail_after(60):
        async with (
            running_service(tmp_path, engine_slots="1") as service,
            client(service.address) as watcher,
        ):
            holder = (
                await create(watcher, script(pieces=["h "], repeat=5000, delay_ms=20))
                if phase == "queued"
                else ""
            )
            channel = grpc.aio.insecure_channel(service.address)
            stubs = Stubs(channel)
            request = rpc.PredictRequest(model=MODEL, generation=generation)
            call = stubs.predictions.Predict(request, timeout=0.7 if going == "deadline" else None)
            wanted = {"queued": "accepted", "prefill": "started", "decode": "output"}[phase]
            prediction_id = ""
            while (event := await call.read()).WhichOneof("event") != wanted:
                prediction_id = prediction_id or event.accepted.prediction_id
            prediction_id = prediction_id or event.accepted.prediction_id
            match going:
                case "cancel":
                    call.cancel()
                case "channel":
                    await channel.close(grace=None)
                case "deadline":
                    with pytest.raises(grpc.aio.AioRpcError) as ended:
                        while await call.read():
                            pass
                    assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            get = rpc.GetPredictionRequest(id=prediction_id, wait={"seconds": 10})
            assert (await watcher.predictions.GetPrediction(get)).status == pb.STATUS_CANCELED
            await channel.close()
            if holder:
                await cancel(watcher, holder)
            await until_free(watcher, 1)


async def test_a_killed_client_process_frees_its_slot(tmp_path: Path) -> None:
    program = (
        "import sys, grpc\n"
        "from protos.tailrace.v1 import prediction_service_pb2 as rpc, prediction_pb2 as pb\n"
        "from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceStub\n"
        "stub = PredictionServiceStub(grpc.insecure_channel(sys.argv[1]))\n"
        "generation = pb.GenerationRequest(prompt=sys.argv[2], stopping=pb.Stopping(max_tokens=1000))\n"
        "for event in stub.Predict(rpc.PredictRequest(model=sys.argv[3], generation=generation)):\n"
        "    print(event.WhichOneof('event'), flush=True)\n"
    )
    with anyio.fail_after(60):
        async with running_service(tmp_path) as service, client(service.address) as stubs:
            slots = await free_slots(stubs)
            prompt = script(pieces=["a "], repeat=1000, delay_ms=20).prompt
            process = await anyio.open_process(
                [sys.executable, "-c", program, service.address, prompt, MODEL]
            )
            assert process.stdout is not None
            seen = b""
            while b"output" not in seen:
                seen += await process.stdout.receive()
            assert await free_slots(stubs) == slots - 1
            process.kill()
            await process.wait()
            await until_free(stubs, slots)


async def test_two_predictions_never_share_a_slot_and_a_cancel_disturbs_no_neighbour(tmp_path: Path) -> None:
    generations = [words(60, delay_ms=2) for _ in range(12)]
    with anyio.fail_after(60):
        async with running_service(tmp_path, engine_slots="3") as service, client(service.address) as stubs:
            logs = [Log() for _ in generations]
            async with anyio.create_task_group() as tasks:
                for n, (generation, _) in enumerate(generations):
                    prediction_id = await create(stubs, generation)
                    tasks.start_soon(follow, stubs, prediction_id, logs[n])
                    if n % 3 == 1:
                        tasks.start_soon(cancel, stubs, prediction_id)
                    assert await free_slots(stubs) >= 0
            for n, (log, (_, text)) in enumerate(zip(logs, generations, strict=True)):
                assert text.startswith(log.text)
                assert log.end is not None
                if n % 3 != 1:
                    assert log.text == text
            await until_free(stubs, 3)


async def test_streams_survive_the_engine_being_killed_again_and_again(tmp_path: Path) -> None:
    streams, count = 3, 900
    with anyio.fail_after(120):
        async with running_service(tmp_path) as service, client(service.address) as stubs:
            texts, logs = [], [Log() for _ in range(streams)]
            async with anyio.create_task_group() as tasks:
                for n in range(streams):
                    generation, text = words(count + n, delay_ms=8)
                    texts.append(text)
                    tasks.start_soon(follow, stubs, await create(stubs, generation), logs[n])
                await disturb(
                    service.kill_engines,
                    times=KILLS,
                    progress=lambda: min(log.sequence for log in logs),
                    over=lambda: any(log.end for log in logs),
                    step=8,
                )
            assert [log.text for log in logs] == texts


async def test_streams_survive_the_service_being_killed_again_and_again(tmp_path: Path) -> None:
    generation, text = words(1500, delay_ms=20)
    log = Log()
    with anyio.fail_after(170):
        async with running_service(tmp_path) as service, client(service.address) as stubs:
            prediction_id = await create(stubs, generation)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, stubs, prediction_id, log)
                await disturb(
                    service.kill_and_start,
                    times=KILLS,
                    progress=lambda: log.sequence,
                    over=lambda: log.end is not None,
                )
            assert log.text == text
            stored = await stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=prediction_id))
            assert "".join(stored.output) == text and stored.epoch >= 2


async def test_sigterm_drains_refuses_new_work_and_leaves_the_rest_for_the_next_start(tmp_path: Path) -> None:
    long, long_text = words(200, delay_ms=20)
    short, short_text = words(40, delay_ms=10)
    with anyio.fail_after(90):
        async with running_service(tmp_path, drain="1.5") as service, client(service.address) as stubs:
            long_id, short_id = await create(stubs, long), await create(stubs, short)
            engine = service.engine_pids()
            short_log, long_log = Log(), Log()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, stubs, short_id, short_log)
                while not short_log.text:
                    await anyio.sleep(0.005)
                service.send(signal.SIGTERM)
                refused = False
                while not refused:
                    try:
                        request = rpc.CreatePredictionRequest(model=MODEL, generation=short)
                        await stubs.predictions.CreatePrediction(request)
                    except grpc.aio.AioRpcError as error:
                        assert error.code() is grpc.StatusCode.UNAVAILABLE
                        refused = True
            assert short_log.text == short_text
            assert await service.wait() == 0
            assert not any(alive(pid) for pid in engine)
            await service.start()
            await follow(stubs, long_id, long_log)
            assert long_log.text == long_text


async def test_an_attached_prediction_whose_caller_does_not_come_back_after_a_restart_is_canceled(
    tmp_path: Path,
) -> None:
    generation, _ = words(5000, delay_ms=20)
    with anyio.fail_after(60):
        async with running_service(tmp_path, attach_grace="0.3") as service, client(service.address) as stubs:
            call = stubs.predictions.Predict(rpc.PredictRequest(model=MODEL, generation=generation))
            log = Log()
            while not log.text:
                log.take(await call.read())
            await service.kill()
            await service.start()
            get = rpc.GetPredictionRequest(id=log.id, wait={"seconds": 30})
            stored = await stubs.predictions.GetPrediction(get, wait_for_ready=True)
            assert stored.status == pb.STATUS_CANCELED
            assert "".join(stored.output).startswith(log.text)


async def test_a_reader_that_stops_reading_is_dropped_slows_nobody_and_can_resume(tmp_path: Path) -> None:
    big = "x" * 500
    generation = script(pieces=[big], repeat=4000)
    quick, quick_text = words(300)
    with anyio.fail_after(90):
        async with (
            running_service(tmp_path, stall_limit="0.5") as service,
            client(service.address) as stubs,
        ):
            prediction_id = await create(stubs, generation)
            stalled = stubs.predictions.StreamPrediction(rpc.StreamPredictionRequest(id=prediction_id))
            first = await stalled.read()
            log = Log()
            await follow(stubs, await create(stubs, quick), log)
            assert log.text == quick_text
            get = rpc.GetPredictionRequest(id=prediction_id, wait={"seconds": 60}, omit_data=True)
            assert (await stubs.predictions.GetPrediction(get)).status == pb.STATUS_SUCCEEDED
            while "READER_TOO_SLOW" not in service.log:
                await anyio.sleep(0.05)
            resumed = Log()
            resumed.take(first)
            await follow(stubs, prediction_id, resumed)
            assert len(resumed.text) == 4000 * len(big)
            stalled.cancel()
