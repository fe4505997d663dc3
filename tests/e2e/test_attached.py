"""A caller that goes away frees the slot: in every phase, streaming or not, through every dialect."""

from __future__ import annotations

from pathlib import Path

import anyio
import httpx
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import GetModelRequest
from tests.support.dialects import (
    ALL,
    CHAT,
    MESSAGES,
    WITH_WHOLE,
    Dialect,
    name_of,
    open_stream,
    read_stream,
)
from tests.support.outage import read_over_a_death
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, running_pair, script, until_idle

FREED_S = 5
"""Far below the 10 s after which the service would notice by itself that nobody is attached."""
ENDLESS = script(pieces=["a "], repeat=100_000, delay_ms=10)
SLOW_PREFILL = script(pieces=["a"], prefill_ms=60_000, prefill_tokens=5)


async def load(pair: Pair) -> tuple[int, int]:
    """Return how many run and how many wait."""
    found = (await pair.stubs.models.GetModel(GetModelRequest(name=MODEL))).load
    return found.running, found.waiting


async def until_load(pair: Pair, running: int, waiting: int) -> None:
    while await load(pair) != (running, waiting):
        await anyio.lowlevel.checkpoint()


async def newest(pair: Pair) -> pb.Prediction:
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    return page.predictions[0] if page.predictions else pb.Prediction()


async def ask(pair: Pair, dialect: Dialect, prompt: str, *, stream: bool) -> None:
    """Ask and wait for ever; the test goes away."""
    async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
        if stream:
            await read_stream(http, pair.edge.url, dialect, prompt)
        else:
            await http.post(pair.edge.url + dialect.path, json=dialect.body(prompt))
    raise AssertionError("an answer to an endless prediction")


WAYS = [(dialect, stream) for dialect in ALL for stream in (True, False) if stream or dialect in WITH_WHOLE]
"""Each endpoint, streamed and, where it can, whole."""


@pytest.mark.parametrize(
    ("dialect", "stream"), WAYS, ids=[f"{name_of(d)}-{'stream' if s else 'whole'}" for d, s in WAYS]
)
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
async def test_going_away_frees_the_slot(narrow: Pair, dialect: Dialect, phase: str, stream: bool) -> None:
    prompt = SLOW_PREFILL if phase == "prefill" else ENDLESS
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        blocker = await narrow.api.create(ENDLESS) if phase == "queued" else None
        if blocker is not None:
            await until_load(narrow, 1, 0)
        before = (await newest(narrow)).id
        async with anyio.create_task_group() as caller:

            async def call() -> None:
                await ask(narrow, dialect, prompt, stream=stream)

            caller.start_soon(call)
            await until_load(narrow, 1, 1 if blocker else 0)
            while (record := await newest(narrow)).id == before or not record.id:
                await anyio.lowlevel.checkpoint()  # a place is counted before the prediction is stored
            while phase == "decode" and record.usage.output_tokens < 3:
                record = await newest(narrow)
            caller.cancel_scope.cancel()
        with anyio.fail_after(FREED_S):
            await until_load(narrow, 1 if blocker else 0, 0)
        if blocker is not None:
            await narrow.api.cancel(blocker)
        ended = await narrow.stubs.predictions.GetPrediction(
            rpc.GetPredictionRequest(id=record.id, wait={"seconds": 10})
        )
    assert record.attached and ended.status == pb.STATUS_CANCELED
    assert ended.finish_reason == pb.FINISH_REASON_CANCELED
    tokens = ended.usage.output_tokens
    text = "".join(ended.output)
    assert text == "a " * (len(text) // 2)
    assert tokens >= len(text) // 2, "all that was sampled counts, also what was on its way"
    assert (tokens > 0) == (phase == "decode")


async def test_b042_the_next_request_gets_its_own_answer(narrow: Pair) -> None:
    prompt, text = numbered(5)
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        for dialect in WITH_WHOLE:
            async with anyio.create_task_group() as caller:
                caller.start_soon(lambda dialect=dialect: ask(narrow, dialect, ENDLESS, stream=False))
                await until_load(narrow, 1, 0)
                caller.cancel_scope.cancel()
            answer = await narrow.http.post(narrow.edge.url + dialect.path, json=dialect.body(prompt))
            assert answer.status_code == 200 and dialect.whole(answer.json()) == text


async def test_b043_aborts_leave_no_traceback(narrow: Pair) -> None:
    before = len(narrow.edge.log), len(narrow.service.log)
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        for number in range(50):
            dialect = ALL[number % len(ALL)]
            async with httpx.AsyncClient(timeout=LIMIT_S, trust_env=False) as http:
                async with open_stream(http, narrow.edge.url, dialect, ENDLESS) as reading:
                    while not dialect.text(reading):
                        await anext(reading)
            await until_idle(narrow.stubs)
        while narrow.edge.log[before[0] :].count('"event": "http_request"') < 50:
            await anyio.sleep(0.02)  # a log gives no event to wait for
    edge, service = narrow.edge.log[before[0] :], narrow.service.log[before[1] :]
    for log in (edge, service):
        for word in ("Traceback", "ExceptionGroup", '"level": "error"', "never awaited"):
            assert word not in log


async def test_b044_disconnects_are_seen_through_all_that_surrounds_a_request(narrow: Pair) -> None:
    # One slot: what comes after each abort runs only if the slot is free again.
    prompt, text = numbered(3)
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        for stream in (True, False):
            async with anyio.create_task_group() as caller:
                caller.start_soon(lambda stream=stream: ask(narrow, CHAT, ENDLESS, stream=stream))
                await until_load(narrow, 1, 0)
                caller.cancel_scope.cancel()
            with anyio.fail_after(FREED_S):
                reading = await read_stream(narrow.http, narrow.edge.url, MESSAGES, prompt)
            assert MESSAGES.text(reading) == text


async def test_streams_go_on_over_the_death_of_the_service(tmp_path: Path) -> None:
    prompt, text = numbered(60, delay_ms=20)
    async with running_pair(tmp_path) as pair:
        readings = await read_over_a_death(pair, ALL, prompt, Dialect.text)
    assert {d.name: d.text(readings[d.name]) for d in ALL} == {d.name: text for d in ALL}
