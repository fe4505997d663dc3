"""Cases of public bug reports on cancel, each named after its number."""

from __future__ import annotations

import random
from typing import Any

import anyio

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import GetModelRequest
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, script, until_idle

REPEATS = 60
DONE = {"succeeded": {}, "canceled": {"reason": "canceled"}, "failed": {"reason": "error"}}


async def load(pair: Pair) -> tuple[int, int]:
    """Return how many run and how many wait."""
    found = (await pair.stubs.models.GetModel(GetModelRequest(name=MODEL))).load
    return found.running, found.waiting


async def test_b050_cancel_after_the_end_changes_nothing(pair: Pair) -> None:
    api = pair.api
    endless = script(pieces=["a "], repeat=10_000, delay_ms=20)
    succeeded = await api.create(script(pieces=["a"]), {"Prefer": "wait"})
    failed = await api.create(script(pieces=["a"], fail_after=1), {"Prefer": "wait"})
    canceled = await api.create(endless)
    assert (await api.cancel(canceled)).json()["status"] == "canceled"
    for made, status in ((succeeded, "succeeded"), (failed, "failed"), (canceled, "canceled")):
        before = await api.get(made)
        answer = await api.cancel(made)
        assert answer.status_code == 200 and answer.json() == before == await api.get(made)
        assert before["status"] == status and before["completed_at"]
    twice = await api.create(endless)
    answers: list[Any] = []

    async def cancel() -> None:
        answers.append(await api.cancel(twice))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        tasks.start_soon(cancel)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.json()["completed_at"] for answer in answers} == {(await api.get(twice))["completed_at"]}
    for name in ("a" * 26, "nope"):
        answer = await pair.http.post(f"{pair.edge.url}/v1/predictions/{name}/cancel")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


async def test_b051_capacity_comes_back_when_the_engine_confirms(narrow: Pair) -> None:
    slow = script(pieces=["a "], repeat=10_000, delay_ms=10, cancel_takes_ms=3000)
    prompt, text = numbered(3)
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        first = await narrow.api.create(slow)
        async with narrow.api.stream(first) as reading:
            await reading.until_events(2)
            second = await narrow.api.create(prompt)
            assert (await narrow.api.cancel(first)).json()["status"] == "canceled"
            assert await load(narrow) == (1, 1), "the slot is not free before the engine says so"
            assert (await narrow.api.get(second))["status"] == "starting"
            await reading.to_end()
        assert reading.done == {"reason": "canceled"}
        assert (await narrow.api.read(second)).text == text
        stored = await narrow.api.get(first)
        assert reading.text == "".join(stored["output"])


async def agree(pair: Pair, made: dict[str, Any]) -> str:
    """Return the status on which GET, the stream and gRPC agree, with the same text."""
    reading = await pair.api.read(made)
    stored = await pair.api.get(made)
    record = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=made["id"]))
    status = str(stored["status"])
    assert reading.done == DONE[status]
    assert pb.Status.Name(record.status) == f"STATUS_{status.upper()}"
    assert reading.text == "".join(stored["output"] or []) == "".join(record.output)
    return status


async def test_b056_a_cancel_that_races_with_the_end_is_told_the_same_everywhere(pair: Pair) -> None:
    prompt, text = numbered(8, delay_ms=4)
    seen: list[str] = []

    async def race(delay_s: float) -> None:
        made = await pair.api.create(prompt)
        await anyio.sleep(delay_s)  # the race itself
        told = (await pair.api.cancel(made)).json()["status"]
        status = await agree(pair, made)
        assert told == status
        if status == "succeeded":
            assert "".join((await pair.api.get(made))["output"]) == text
        seen.append(status)

    with anyio.fail_after(LIMIT_S):
        for _ in range(REPEATS // 6):
            async with anyio.create_task_group() as tasks:
                for _ in range(6):
                    tasks.start_soon(race, random.uniform(0, 0.06))
    assert len(seen) == REPEATS and set(seen) <= {"succeeded", "canceled"}
    await until_idle(pair.stubs)


async def test_b056_cancel_while_queued_prefilling_generating_and_finished(narrow: Pair) -> None:
    api = narrow.api
    with anyio.fail_after(LIMIT_S):
        await until_idle(narrow.stubs)
        prefilling = await api.create(script(pieces=["a"], prefill_ms=60_000, prefill_tokens=5))
        queued = await api.create(numbered(5)[0])
        while await load(narrow) != (1, 1):
            await anyio.lowlevel.checkpoint()
        assert (await api.cancel(queued)).json()["status"] == "canceled"
        assert await load(narrow) == (1, 0)
        final = await api.get(queued)
        assert (final["output"], final["started_at"]) == (None, None) and final["completed_at"]
        assert await agree(narrow, queued) == "canceled"
        assert (await api.cancel(prefilling)).json()["status"] == "canceled"
        assert await agree(narrow, prefilling) == "canceled"
        generating = await api.create(script(pieces=["a "], repeat=10_000, delay_ms=10))
        async with api.stream(generating) as reading:
            await reading.until_events(2)
        assert (await api.cancel(generating)).json()["status"] == "canceled"
        assert await agree(narrow, generating) == "canceled"
        finished = await api.create(numbered(3)[0], {"Prefer": "wait"})
        assert (await api.cancel(finished)).json() == finished
        assert await agree(narrow, finished) == "succeeded"
        await until_idle(narrow.stubs)
