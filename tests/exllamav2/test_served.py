"""The engine behind the service, as processes: streams, a refused constraint, a kill in mid-stream."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from protos.tailrace.v1 import model_service_pb2 as models
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.exllamav2 import tiny_model
from tests.support.exllamav2.engines import random_ids
from tests.support.processes import ROOT, Service, Stubs, client, running_service
from tests.support.streams import Log, create, disturb, follow

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
MODEL = Service.MODEL
SITE = Path(tiny_model.__file__).parent / "site"


@asynccontextmanager
async def served(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Service, Stubs]]:
    """Run the service on the tiny model."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(ROOT)]))
    options = json.dumps({"batch_tokens": 256})
    async with (
        running_service(
            folder, engine="exllamav2", engine_slots="4", engine_context_tokens="1024",
            model_path=str(model), engine_options=options,
        ) as service,
        client(service.address) as stubs,
    ):  # fmt: skip
        yield service, stubs


def ask(seed: int, **sampling: float) -> pb.GenerationRequest:
    return pb.GenerationRequest(
        tokens=pb.TokenInput(token_ids=random_ids(40, seed)),
        sampling=pb.Sampling(**sampling),  # type: ignore[arg-type]  # fields of several types
        stopping=pb.Stopping(max_tokens=600, ignore_eos=True),
    )


async def text_of(stubs: Stubs, request: pb.GenerationRequest) -> str:
    log = Log()
    async for event in stubs.predictions.Predict(rpc.PredictRequest(model=MODEL, generation=request)):
        log.take(event)
    return log.text


async def test_streams_constraints_and_kills_through_the_service(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, model_folder, monkeypatch) as (service, stubs):
        shown = await stubs.models.GetModel(models.GetModelRequest(name=MODEL))
        assert shown.engine == "exllamav2" and shown.context_tokens == 1024 and shown.chat_template
        whole = {seed: await text_of(stubs, ask(seed, temperature=0)) for seed in (1, 2)}
        assert all(len(text) > 100 for text in whole.values())
        refused = pb.GenerationRequest(prompt="a", regex="(")
        with pytest.raises(Exception, match="regex"):
            await text_of(stubs, refused)
        digits = pb.GenerationRequest(prompt="a", regex="[0-9]{12}", stopping=pb.Stopping(max_tokens=40))
        assert len(await text_of(stubs, digits)) == 12
        for seed in (1, 2):
            log = Log()
            prediction_id = await create(stubs, ask(seed, temperature=0))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, stubs, prediction_id, log)
                await disturb(
                    service.kill_engines,
                    times=1,
                    progress=lambda log=log: log.sequence,
                    over=lambda log=log: log.end is not None,
                    step=4,
                )
            assert log.text == whole[seed]
