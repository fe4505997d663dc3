"""Cases of public bug reports on processes, channels and signals, each named after its number."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
import grpc

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import GetModelRequest
from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceStub
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, script, until_idle
from tests.support.processes import ROOT, alive

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


async def python(program: str, *arguments: str, **environment: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(
            [sys.executable, "-c", program, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((".", "clients/python")), **environment},
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


async def test_b130_after_a_prompt_that_is_too_long_everything_is_idle(pair: Pair) -> None:
    refused = await pair.api.post({"prompt": "x" * 200_001})
    assert refused.status_code == 422
    assert [fault["field"] for fault in refused.json()["invalid_fields"]] == ["input.prompt"]
    prompt, text = numbered(5)
    assert (await pair.api.read(await pair.api.create(prompt))).text == text
    await until_idle(pair.stubs)
    pids = [pair.edge.pid, pair.service.pid, *pair.service.engine_pids()]
    before = [cpu_s(pid) for pid in pids]
    await anyio.sleep(1)  # the span that is measured
    used = [after - b for after, b in zip(map(cpu_s, pids), before, strict=True)]
    assert max(used) < 0.25, "something spins"


async def test_b166_a_client_that_pings_without_calls_keeps_its_connection(narrow: Pair) -> None:
    # 10 s is what the service allows by default; here both are scaled, 1 s being the least gRPC can do.
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    ready = grpc.ChannelConnectivity.READY
    with anyio.fail_after(LIMIT_S):
        async with grpc.aio.insecure_channel(narrow.service.address, options=options) as channel:
            await channel.channel_ready()
            with anyio.move_on_after(4.5) as idle:  # more pings than a server forgives
                await channel.wait_for_state_change(ready)
            assert idle.cancelled_caught and channel.get_state() is ready
            model = await ModelServiceStub(channel).GetModel(GetModelRequest(name=MODEL))
            assert model.name == MODEL


LOOPS = """
import asyncio, json, sys, threading
from tailrace import AsyncClient
address, model = sys.argv[1:]
prompt = "script:" + json.dumps({"pieces": ["a ", "b"]})
client = AsyncClient(address)
texts = []

async def call():
    text = ""
    async with client.predict(model, prompt=prompt) as stream:
        async for event in stream:
            text += event.output.text
    await client.close()
    texts.append(text)

asyncio.run(call())
asyncio.run(call())
threads = [threading.Thread(target=lambda: asyncio.run(call())) for _ in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
print(texts)
"""


async def test_b168_one_client_serves_loop_after_loop_and_two_threads(pair: Pair) -> None:
    assert await python(LOOPS, pair.service.address, MODEL) == f"{['a b'] * 4}\n"


FORKS = """
import json, multiprocessing, sys
from tailrace import Client
address, model = sys.argv[1:]
prompt = "script:" + json.dumps({"pieces": ["a ", "b"]})

def calls(count):
    with Client(address) as client:
        for _ in range(count):
            with client.predict(model, prompt=prompt) as stream:
                if "".join(event.output.text for event in stream) != "a b":
                    sys.exit(1)

def worker():
    calls(25)

context = multiprocessing.get_context("fork")
calls(1)
workers = [context.Process(target=worker) for _ in range(4)]
[w.start() for w in workers]
[w.join(25) for w in workers]
print([w.exitcode for w in workers])
[w.kill() for w in workers]
"""


async def test_b174_workers_forked_after_a_call_make_calls_of_their_own(pair: Pair) -> None:
    printed = await python(FORKS, pair.service.address, MODEL, GRPC_ENABLE_FORK_SUPPORT="1")
    assert printed == "[0, 0, 0, 0]\n"


async def test_b175_the_first_call_after_a_restart_of_engine_or_service_succeeds(pair: Pair) -> None:
    prompt, text = numbered(5)
    with anyio.fail_after(60):
        await until_idle(pair.stubs)
        for pid in pair.service.engine_pids():
            os.kill(pid, signal.SIGKILL)
        assert "".join((await pair.api.create(prompt, {"Prefer": "wait=30"}))["output"]) == text
        await pair.service.kill()
        await pair.service.start()
        await pair.service.ready()
        made = await pair.api.create(prompt, {"Prefer": "wait=30"})
        assert "".join(made["output"]) == text
        request = rpc.CreatePredictionRequest(model=MODEL, generation=pb.GenerationRequest(prompt=prompt))
        assert (await pair.stubs.predictions.CreatePrediction(request, wait_for_ready=True)).id


TWO_LOOPS = """
import asyncio, json, sys, threading
from tests.support.edge_server import edge_settings, run_edge
address, model = sys.argv[1:]
prompt = "script:" + json.dumps({"pieces": ["a ", "b"]})
texts = []

async def serve_and_call():
    async with run_edge(edge_settings(address)) as edge:
        body = {"input": {"prompt": prompt}}
        made = (await edge.client.post(f"/v1/models/{model}/predictions", json=body)).json()
        answer = await edge.client.get(made["urls"]["stream"])
        texts.append(answer.text.count("event: done"))

asyncio.run(serve_and_call())
asyncio.run(serve_and_call())
threads = [threading.Thread(target=lambda: asyncio.run(serve_and_call())) for _ in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
print(texts)
"""


async def test_b183_two_applications_in_one_process_share_nothing(pair: Pair) -> None:
    assert await python(TWO_LOOPS, pair.service.address, MODEL) == "[1, 1, 1, 1]\n"


async def test_b186_a_drain_starts_at_once_and_a_second_signal_forces_the_exit(narrow: Pair) -> None:
    running_prompt, running_text = numbered(100, delay_ms=20)
    queued_prompt, queued_text = numbered(5)
    with anyio.fail_after(90):
        await until_idle(narrow.stubs)
        running = await narrow.api.create(running_prompt)
        queued = await narrow.api.create(queued_prompt)
        engines = narrow.service.engine_pids()
        async with narrow.api.stream(queued) as idle:
            await anext(idle)
            narrow.edge.send(signal.SIGTERM)
            await idle.to_end()
            assert idle.events == [] and idle.parser.retry is not None
        assert await narrow.edge.wait() == 0
        # Its drain would take a minute: the running prediction has that long to end.
        endless = await _endless(narrow)
        narrow.service.send(signal.SIGTERM)
        while "draining" not in narrow.service.log:
            await anyio.sleep(0.01)
        narrow.service.send(signal.SIGTERM)
        assert await narrow.service.wait() == 1
        while any(alive(pid) for pid in engines):
            await anyio.sleep(0.01)
        await narrow.service.start()
        await narrow.service.ready()
        await narrow.edge.start()
        await narrow.edge.ready()
        assert (await narrow.api.read(running)).text == running_text
        cancel = rpc.CancelPredictionRequest(id=endless)
        await narrow.stubs.predictions.CancelPrediction(cancel, wait_for_ready=True)
        assert (await narrow.api.read(queued)).text == queued_text
        await until_idle(narrow.stubs)


async def _endless(pair: Pair) -> str:
    """Create a prediction by gRPC that outlasts any drain."""
    prompt = script(pieces=["a "], repeat=10_000, delay_ms=50)
    generation = pb.GenerationRequest(prompt=prompt, stopping=pb.Stopping(max_tokens=10_000), priority=-1)
    request = rpc.CreatePredictionRequest(model=MODEL, generation=generation)
    return str((await pair.stubs.predictions.CreatePrediction(request)).id)
