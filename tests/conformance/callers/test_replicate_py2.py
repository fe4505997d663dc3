"""Replicate's generated Python client (2.0 beta), types checked strictly. Numbers: the contract's checks."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tests.conformance.callers.programs import Py2
from tests.support.pair import MODEL, Pair, numbered, script

ENDLESS = script(pieces=["a "], repeat=10_000, delay_ms=50)


async def test_03_run_polls_on_when_the_wait_expires(pair: Pair, py2: Py2) -> None:
    prompt, text = numbered(15, delay_ms=100)
    report = await py2.run("run", pair.edge.url, model=MODEL, prompt=prompt, wait=1)
    assert report.error is None and report.result == text
    created, *polls = report.calls
    assert (created["status"], created["prefer"], created["applied"]) == (202, "wait=1", "wait=1")
    assert polls and all(call["method"] == "GET" for call in polls)


async def test_09_a_wait_shorter_than_the_run_is_one_post(pair: Pair, py2: Py2) -> None:
    # The client gives up at 60 s sharp and posts again: here at 2 s, which is what it asks us to hold.
    options = {"model": MODEL, "prompt": ENDLESS, "prefer": "wait=2", "timeout": 2.0}
    report = await py2.run("create", pair.edge.url, **options)
    assert report.error is None and report.result["status"] == "starting"
    (call,) = report.calls
    assert (call["status"], call["retry"]) == (202, "0")
    assert (await pair.api.cancel(report.result)).status_code == 200


async def test_10_use_gives_one_string(pair: Pair, py2: Py2) -> None:
    prompt, text = numbered(6, delay_ms=10)
    report = await py2.run("use", pair.edge.url, model=MODEL, prompt=prompt)
    assert report.error is None and report.result == text


async def test_11_use_streaming_gives_pieces_before_the_end(pair: Pair, py2: Py2) -> None:
    prompt, text = numbered(15, delay_ms=80)
    report = await py2.run("use_streaming", pair.edge.url, model=MODEL, prompt=prompt)
    assert report.error is None and "".join(report.result["pieces"]) == text
    assert report.result["spread_s"] > 0.5


async def test_30_an_unknown_prediction_is_a_not_found_error(pair: Pair, py2: Py2) -> None:
    report = await py2.run("get", pair.edge.url, ids=["nope"])
    assert report.error is not None
    assert (report.error["name"], report.error["status"]) == ("NotFoundError", 404)
    assert report.error["body"]["title"] == "Prediction not found"


async def test_33_iterating_over_the_list_gives_every_prediction_once(pair: Pair, py2: Py2) -> None:
    ids = await pair.api.create_many(250)
    report = await py2.run("list_all", pair.edge.url)
    assert report.error is None
    assert report.result[:250] == ids and len(set(report.result)) == len(report.result)
    assert len(report.calls) == -(-len(report.result) // 100)


async def test_34_35_cancel_after_ends_it_and_the_wait(pair: Pair, py2: Py2) -> None:
    options = {"model": MODEL, "prompt": ENDLESS, "cancel_after": "5s", "prefer": "wait=10"}
    report = await py2.run("create", pair.edge.url, **options)
    assert report.error is None and report.result["status"] == "canceled"
    made = report.result
    moments = {
        name: datetime.fromisoformat(made[name]) for name in ("created_at", "deadline", "completed_at")
    }
    assert moments["deadline"] - moments["created_at"] == timedelta(seconds=5)
    assert timedelta(0) <= moments["completed_at"] - moments["deadline"] < timedelta(seconds=1)
    assert (await pair.api.read(made)).done == {"reason": "canceled"}


@pytest.mark.parametrize("value", ["4s", "25h", "1x", "-5"])
async def test_34_a_bad_cancel_after_is_an_unprocessable_entity(pair: Pair, py2: Py2, value: str) -> None:
    report = await py2.run("create", pair.edge.url, model=MODEL, prompt="x", cancel_after=value)
    assert report.error is not None
    assert (report.error["name"], report.error["status"]) == ("UnprocessableEntityError", 422)
    assert report.error["body"]["invalid_fields"][0]["field"] == "Cancel-After"


async def test_40_everything_else_there_is_to_read_parses(pair: Pair, py2: Py2) -> None:
    report = await py2.run("catalog", pair.edge.url, model=MODEL, deployment="acme/chat")
    assert report.error is None, report.error
    name = MODEL.partition("/")[2]
    assert report.result == {
        "models": [name],
        "version": True,
        "readme": "# ",
        "search": [name],
        "deployments": ["chat"],
        "deployment": "chat",
        "made_on": "acme/chat",
        "account": "local",
        "hardware": ["local"],
        "collections": 0,
        "trainings": 0,
    }


async def test_44_every_answer_in_every_state_parses_strictly(pair: Pair, py2: Py2) -> None:
    running = await pair.api.create(ENDLESS, {"Cancel-After": "1h"})
    async with pair.api.stream(running) as reading:
        await reading.until_events(1)
    ended = [
        await pair.api.create(prompt, {"Prefer": "wait"})
        for prompt in (script(pieces=["a"]), script(), script(pieces=["a"], fail_after=1), script(oom=True))
    ]
    report = await py2.run("get", pair.edge.url, ids=[made["id"] for made in (running, *ended)])
    assert report.error is None, report.error
    assert [found["status"] for found in report.result] == [
        "processing",
        *(made["status"] for made in ended),
    ]
    assert report.result[0]["deadline"] and report.result[1]["metrics"]["output_token_count"] >= 1
    for status, prefer in (("starting", None), ("succeeded", "wait")):
        options = {"prompt": script(pieces=["a"]), "model": MODEL, **({"prefer": prefer} if prefer else {})}
        created = await py2.run("create", pair.edge.url, **options)
        assert created.error is None and created.result["status"] == status
    canceled = (await pair.api.cancel(running)).json()
    report = await py2.run("get", pair.edge.url, ids=[canceled["id"]])
    assert report.error is None and report.result[0]["status"] == "canceled"


async def test_an_upload_is_refused_once(pair: Pair, py2: Py2) -> None:
    report = await py2.run("upload", pair.edge.url)
    assert report.error is not None and report.error["status"] == 501
    assert len(report.calls) == 1
