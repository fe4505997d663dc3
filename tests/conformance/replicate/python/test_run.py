"""Replicate's Python client: run, create, wait, cancel, errors.

Numbers are those of the contract's acceptance checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import anyio
import httpx
import pytest
import replicate
from replicate.exceptions import ModelError, ReplicateError
from replicate.prediction import Prediction

from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.conformance.replicate.python.wire import Wire, in_thread
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, script

REQUIRED = {
    "id", "model", "version", "input", "output", "data_removed", "error", "status", "created_at", "urls",
}  # fmt: skip
STATUSES = {"starting", "processing", "succeeded", "failed", "canceled"}


async def test_01_run_returns_the_pieces_after_one_post(
    pair: Pair, py1: replicate.Client, wire: Wire
) -> None:
    prompt, text = numbered(5)
    output = await in_thread(py1.run, MODEL, input={"prompt": prompt})
    assert isinstance(output, list) and "".join(output) == text
    (answer,) = wire.answers
    assert (answer.request.method, answer.status_code) == ("POST", 201)
    assert answer.request.headers["prefer"] == "wait"
    assert answer.headers["preference-applied"] == "wait"
    assert answer.headers["location"] == answer.json()["urls"]["get"]


async def test_02_run_polls_on_when_the_wait_expires(py1: replicate.Client, wire: Wire) -> None:
    # B057: had the create said `processing`, run() would return what was there by then.
    prompt, text = numbered(20, delay_ms=90)
    output = await in_thread(py1.run, MODEL, input={"prompt": prompt}, wait=1)
    assert "".join(output) == text
    created, *polls = wire.answers
    assert created.status_code == 202 and created.headers["preference-applied"] == "wait=1"
    assert (created.json()["status"], created.json()["output"]) == ("starting", None)
    assert polls and all(poll.request.method == "GET" for poll in polls)


async def test_07_run_without_waiting_has_the_first_tokens_too(py1: replicate.Client, wire: Wire) -> None:
    prompt, text = numbered(12, delay_ms=20)
    output = await in_thread(py1.run, MODEL, input={"prompt": prompt}, wait=False)
    assert "".join(output) == text
    assert "prefer" not in wire.answers[0].request.headers
    assert wire.answers[0].json()["output"] is None

    def grow() -> list[str]:
        prediction = py1.models.predictions.create(MODEL, input={"prompt": prompt})
        return list(prediction.output_iterator())

    assert "".join(await in_thread(grow)) == text


async def test_17_items_that_look_like_links_stay_text(py1: replicate.Client) -> None:
    pieces = ["https://a.b/c", " data", "data:x", ",y ", "https:", "//", "http://z"]
    output = await in_thread(py1.run, MODEL, input={"prompt": script(pieces=pieces)})
    assert all(isinstance(item, str) for item in output)
    assert "".join(output) == "".join(pieces)


async def test_20_the_object_has_what_the_stream_of_this_client_loses(py1: replicate.Client) -> None:
    # B004: `stream()` of this client cuts lines at U+2028 and its like; a known limit of the client.
    pieces = ["x\u2028y", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "end"]
    output = await in_thread(py1.run, MODEL, input={"prompt": script(pieces=pieces)})
    assert "".join(output) == "".join(pieces)


async def test_21_run_of_a_failing_model_raises_its_error(py1: replicate.Client) -> None:
    prompt = script(pieces=["a ", "b "], fail_after=1, fail_message="out of luck")
    with pytest.raises(ModelError) as raised:
        await in_thread(py1.run, MODEL, input={"prompt": prompt})
    assert "out of luck" in str(raised.value)
    assert raised.value.prediction.output == ["a "]


async def test_28_wait_reload_and_cancel_after_the_end_change_nothing(py1: replicate.Client) -> None:
    prompt, text = numbered(4, delay_ms=10)

    def act() -> list[dict[str, Any]]:
        prediction = py1.models.predictions.create(MODEL, input={"prompt": prompt})
        seen = []
        for step in (prediction.wait, prediction.reload, prediction.cancel, prediction.reload):
            step()
            seen.append(prediction.dict())
        return seen

    first, *later = await in_thread(act)
    assert first["status"] == "succeeded" and "".join(first["output"]) == text
    assert later == [first] * 3


async def test_30_an_unknown_prediction_is_a_replicate_error(py1: replicate.Client, wire: Wire) -> None:
    for name in ("nope", "a" * 26):
        with pytest.raises(ReplicateError) as raised:
            await in_thread(py1.predictions.get, name)
        assert raised.value.status == 404 and raised.value.title and raised.value.detail
        with pytest.raises(ReplicateError) as raised:
            await in_thread(py1.predictions.cancel, name)
        assert raised.value.status == 404
    assert {a.headers["content-type"] for a in wire.answers} == {"application/problem+json"}


async def test_32_a_missing_prompt_names_the_field(pair: Pair, py1: replicate.Client, wire: Wire) -> None:
    before = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest())
    with pytest.raises(ReplicateError) as raised:
        await in_thread(py1.models.predictions.create, MODEL, input={"temperature": 0})
    assert raised.value.status == 422 and raised.value.title == "Input validation failed"
    problem = wire.answers[-1].json()
    assert problem["invalid_fields"][0] == {
        "type": "required",
        "field": "input",
        "description": "prompt is required",
    }
    assert problem["detail"] == "- input: prompt is required\n"
    after = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest())
    assert [p.id for p in after.predictions] == [p.id for p in before.predictions]


@dataclass
class Deadlined:
    """Two predictions that met their deadline of 5 s, the shortest there is."""

    created: dict[str, Any]
    final: dict[str, Any]
    done: Any
    waited: httpx.Response


@pytest.fixture(scope="module")
async def deadlined(pair: Pair) -> AsyncIterator[Deadlined]:
    endless = script(pieces=["a "], repeat=10_000, delay_ms=50)
    found: dict[str, Any] = {}

    async def detached() -> None:
        found["created"] = await pair.api.create(endless, {"Cancel-After": "5s"})
        found["done"] = (await pair.api.read(found["created"])).done
        found["final"] = await pair.api.get(found["created"])

    async def waiting() -> None:
        headers = {"Cancel-After": "5s", "Prefer": "wait=10"}
        found["waited"] = await pair.api.post({"prompt": endless}, headers)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(detached)
            tasks.start_soon(waiting)
    yield Deadlined(**found)


async def test_34_cancel_after_sets_the_deadline_and_ends_it(deadlined: Deadlined) -> None:
    created = datetime.fromisoformat(deadlined.created["created_at"])
    assert datetime.fromisoformat(deadlined.created["deadline"]) == created + timedelta(seconds=5)
    assert deadlined.done == {"reason": "canceled"}
    assert deadlined.final["status"] == "canceled" and deadlined.final["output"]
    completed = datetime.fromisoformat(deadlined.final["completed_at"])
    assert completed >= created + timedelta(seconds=5)
    assert Prediction(**deadlined.final).status == "canceled"


@pytest.mark.parametrize("value", ["4s", "25h", "1x", "-5", "", "5 s", "1h30", "1.5m"])
async def test_34_a_bad_cancel_after_creates_nothing(pair: Pair, value: str) -> None:
    before = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest())
    answer = await pair.api.post({"prompt": "x"}, {"Cancel-After": value})
    assert answer.status_code == 422
    assert answer.json()["invalid_fields"][0]["field"] == "Cancel-After"
    after = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest())
    assert [p.id for p in after.predictions] == [p.id for p in before.predictions]


@pytest.mark.parametrize(("value", "seconds"), [("1m30s", 90), ("30", 30), ("2h", 7200), ("24h", 86400)])
async def test_34_a_good_cancel_after_is_the_deadline(pair: Pair, value: str, seconds: int) -> None:
    made = await pair.api.create(script(pieces=["a"]), {"Cancel-After": value})
    span = datetime.fromisoformat(made["deadline"]) - datetime.fromisoformat(made["created_at"])
    assert span == timedelta(seconds=seconds)


async def test_35_a_wait_ends_with_the_deadline(deadlined: Deadlined) -> None:
    assert deadlined.waited.status_code == 201
    assert deadlined.waited.json()["status"] == "canceled"
    assert Prediction(**deadlined.waited.json()).status == "canceled"


async def test_44_every_answer_in_every_state_parses_strictly(pair: Pair) -> None:
    api = pair.api
    running = await api.create(script(pieces=["a "], repeat=10_000, delay_ms=20))
    async with api.stream(running) as reading:
        await reading.until_events(1)
    answers = [running, await api.get(running), (await api.cancel(running)).json(), await api.get(running)]
    for prompt in (script(pieces=["a"]), script(), script(pieces=["a"], fail_after=1), script(oom=True)):
        made = await api.create(prompt, {"Prefer": "wait"})
        answers += [made, await api.get(made)]
    answers.append(
        await api.create(script(pieces=["a"], delay_ms=1500), {"Prefer": "wait=1", "Cancel-After": "1h"})
    )
    assert {answer["status"] for answer in answers} == STATUSES
    for answer in answers:
        parsed = Prediction(**answer)
        assert parsed.status == answer["status"] and parsed.version == "hidden"
        assert REQUIRED - answer.keys() == set()
        assert all(isinstance(url, str) and url.startswith(pair.edge.url) for url in answer["urls"].values())
        assert answer["urls"].keys() == {"get", "cancel", "web", "stream"}
        assert answer["error"] is None or isinstance(answer["error"], str)
        assert (answer["error"] is None) == (answer["status"] != "failed")
        assert (answer["completed_at"] is None) == (answer["status"] in ("starting", "processing"))
