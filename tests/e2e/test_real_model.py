"""The real model as a process: what a kill in mid-stream leaves of its greedy text."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.processes import Service, Stubs, client, running_service
from tests.support.streams import Log, create, disturb, follow

pytestmark = pytest.mark.anyio
MODEL = Service.MODEL
KILLS, KILLS_EACH = 20, 2
TOKENS = 48
QUESTIONS = ("Tell me about rivers.", "Write a short story about a fox.", "Explain how bread is made.")


def ask(question: str, tokens: int = TOKENS) -> pb.GenerationRequest:
    """Return a greedy chat request."""
    messages = [pb.ChatMessage(role="user", content=question)]
    return pb.GenerationRequest(
        chat=pb.ChatInput(messages=messages),
        sampling=pb.Sampling(temperature=0),
        stopping=pb.Stopping(max_tokens=tokens),
    )


async def uninterrupted(stubs: Stubs, question: str) -> str:
    """Return the text of a run that nothing disturbs."""
    log = Log()
    async for event in stubs.predictions.Predict(rpc.PredictRequest(model=MODEL, generation=ask(question))):
        log.take(event)
    return log.text


@pytest.mark.timeout(600)
async def test_a_killed_engine_goes_on_with_the_very_text_of_an_uninterrupted_run(tmp_path: Path) -> None:
    with anyio.fail_after(580):
        async with (
            running_service(tmp_path, engine="llama_cpp", engine_slots="2") as service,
            client(service.address) as stubs,
        ):
            texts = {question: await uninterrupted(stubs, question) for question in QUESTIONS}
            for n in range(KILLS // KILLS_EACH):
                question = QUESTIONS[n % len(QUESTIONS)]
                log = Log()
                prediction_id = await create(stubs, ask(question))
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(follow, stubs, prediction_id, log)
                    await disturb(
                        service.kill_engines,
                        times=KILLS_EACH,
                        progress=lambda log=log: log.sequence,
                        over=lambda log=log: log.end is not None,
                        step=12,
                    )
                assert log.text == texts[question], f"prediction {n}"
