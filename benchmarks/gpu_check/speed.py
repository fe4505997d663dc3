"""Speed: the bare library's loop, then the service around it, on the same model, prompts and settings."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import torch
from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

from benchmarks.gpu_check.figures import Report
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from service.ports.engine import EngineEvent, Produced
from tests.contract.engines.recorder import Recorder
from tests.contract.engines.suite import job
from tests.support.exllamav2 import tiny_model
from tests.support.exllamav2.engines import Opened, opened, random_ids
from tests.support.processes import ROOT, Service, Stubs, client, running_service

STREAMS = (1, 8, 32)
AIM = 0.97
SITE = Path(tiny_model.__file__).parent / "site"
BIG = tiny_model.Shape(layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64, intermediate=8192)


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured."""

    folder: Path
    prompt_tokens: int
    output_tokens: int
    context_tokens: int

    @property
    def slots(self) -> int:
        """As many as the largest load has streams."""
        return max(STREAMS)

    def prompts(self, streams: int, salt: int) -> list[tuple[int, ...]]:
        """Return prompts that no cache holds yet."""
        return [random_ids(self.prompt_tokens, 1000 * salt + i) for i in range(streams)]


def make_load(folder: Path) -> Load:
    """Make the model: 1.1 billion random weights on a GPU, the tiny one without."""
    if torch.cuda.is_available():
        return Load(tiny_model.make(folder / "big", BIG), 512, 256, 1024)
    return Load(tiny_model.make(folder / "small"), 64, 32, 256)


def measure(report: Report, load: Load, folder: Path) -> None:
    """Measure all of it."""
    with _opened(load) as found:
        bare = {n: _bare(found, load, n) for n in STREAMS}
        _cancel(report, found, load)
    served = anyio.run(_served, load, folder)
    for n in STREAMS:
        (rate, first_s), (served_rate, served_first_s) = bare[n], served[n]
        report.add("speed", f"bare loop, {n} streams", rate, "tokens/s")
        report.add("speed", f"served, {n} streams", served_rate, "tokens/s")
        judged = served_rate / rate >= AIM if torch.cuda.is_available() else None
        report.add("speed", f"served ÷ bare, {n} streams (aim {AIM})", served_rate / rate, passed=judged)
        report.add("speed", f"time to first token, {n} streams: bare", first_s * 1000, "ms")
        report.add("speed", f"time to first token, {n} streams: served", served_first_s * 1000, "ms")


def _opened(load: Load) -> Any:
    return opened(
        load.folder, slots=load.slots, context_tokens=load.context_tokens, batch_tokens=2048, warm_up=True
    )


def _bare(found: Opened, load: Load, streams: int) -> tuple[float, float]:
    """Run the library's own loop; return output tokens a second, prompts included, and the first's time."""
    generator = found.library.generator
    jobs = [
        ExLlamaV2DynamicJob(
            input_ids=torch.tensor([prompt]),
            max_new_tokens=load.output_tokens,
            gen_settings=ExLlamaV2Sampler.Settings.greedy(),
        )
        for prompt in load.prompts(streams, salt=streams)
    ]
    started = time.perf_counter()
    for one in jobs:
        generator.enqueue(one)
    firsts: dict[int, float] = {}
    while generator.num_remaining_jobs():
        for result in generator.iterate():
            if result["stage"] == "streaming":
                firsts.setdefault(id(result["job"]), time.perf_counter() - started)
    whole = time.perf_counter() - started
    return streams * load.output_tokens / whole, median(firsts.values())


async def _served(load: Load, folder: Path) -> dict[int, tuple[float, float]]:
    if not torch.cuda.is_available():
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SITE), str(ROOT)])
    options = json.dumps({"batch_tokens": 2048})
    async with (
        running_service(
            folder, engine="exllamav2", engine_slots=str(load.slots), model_path=str(load.folder),
            engine_context_tokens=str(load.context_tokens), engine_options=options, store="memory",
        ) as service,
        client(service.address) as stubs,
    ):  # fmt: skip
        return {n: await _streams(stubs, load, n) for n in STREAMS}


async def _streams(stubs: Stubs, load: Load, streams: int) -> tuple[float, float]:
    """As `_bare`, by gRPC."""
    firsts: list[float] = []
    started = time.perf_counter()

    async def one(prompt: tuple[int, ...]) -> None:
        request = pb.GenerationRequest(
            tokens=pb.TokenInput(token_ids=prompt),
            sampling=pb.Sampling(temperature=0),
            stopping=pb.Stopping(max_tokens=load.output_tokens, ignore_eos=True),
        )
        begun = False
        call = stubs.predictions.Predict(rpc.PredictRequest(model=Service.MODEL, generation=request))
        async for event in call:
            if event.HasField("output") and not begun:
                begun = True
                firsts.append(time.perf_counter() - started)

    async with anyio.create_task_group() as tasks:
        for prompt in load.prompts(streams, salt=100 + streams):
            tasks.start_soon(one, prompt)
    whole = time.perf_counter() - started
    return streams * load.output_tokens / whole, median(firsts)


def _set_when_produced(begun: threading.Event, event: EngineEvent) -> None:
    if isinstance(event, Produced):
        begun.set()


def _cancel(report: Report, found: Opened, load: Load) -> None:
    """Measure from a cancel to free pages, beside running streams."""
    taken: list[float] = []
    for i in range(5):
        begun = threading.Event()
        victim = Recorder(partial(_set_when_produced, begun))
        beside = [Recorder() for _ in range(3)]
        jobs = [replace(job(p, load.output_tokens), ignore_eos=True) for p in load.prompts(4, salt=200 + i)]
        for one, recorder in zip(jobs, [victim, *beside], strict=True):
            found.engine.submit(one, recorder.deliver)
        begun.wait(60)
        before = found.pages_free
        started = time.perf_counter()
        found.engine.cancel(jobs[0].id)
        victim.ended()
        taken.append(time.perf_counter() - started)
        assert found.pages_free > before
        for one, recorder in zip(jobs[1:], beside, strict=True):
            found.engine.cancel(one.id)
            recorder.ended()
    report.add("cancel", "cancel to free pages, median of 5", median(taken) * 1000, "ms")
