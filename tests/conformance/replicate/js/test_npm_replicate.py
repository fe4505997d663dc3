"""Replicate's npm client against the edge. Numbers are those of the contract's checks."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from tests.conformance.replicate.js.npm_client import run_case
from tests.support.pair import MODEL, Pair, numbered, script

pytestmark = pytest.mark.node


async def test_04_run_polls_on_when_the_wait_expires(pair: Pair) -> None:
    # B057: had the create said `processing`, run() would return what was there by then.
    prompt, text = numbered(20, delay_ms=70)
    report = await run_case("run_block_1", pair.edge.url, model=MODEL, prompt=prompt)
    assert report.error is None and "".join(report.result) == text
    created, *polls = report.calls
    assert (created["status"], created["prefer"], created["applied"]) == (202, "wait=1", "wait=1")
    assert polls and all(call["method"] == "GET" for call in polls)


@pytest.mark.parametrize("case", ["run", "run_poll"])
async def test_17_run_items_that_look_like_links_stay_text(pair: Pair, case: str) -> None:
    pieces = ["https://a.b/c", " ", "data:x", ", y ", "https:"]
    report = await run_case(case, pair.edge.url, model=MODEL, prompt=script(pieces=pieces))
    assert "".join(report.result) == "".join(pieces)
    # A file object would have been fetched at once.
    assert all(call["path"].startswith("/v1/") for call in report.calls)


async def test_17_stream_events_that_look_like_links_stay_text(pair: Pair) -> None:
    pieces = ["https://a.b/c", " ", "data:x", ", y ", "https:"]
    report = await run_case("stream", pair.edge.url, model=MODEL, prompt=script(pieces=pieces))
    assert all(event["isText"] for event in report.result)
    assert "".join(event["data"] for event in report.result if event["event"] == "output") == "".join(pieces)


async def test_18_stream_needs_no_authorization(pair: Pair) -> None:
    prompt, text = numbered(30, delay_ms=2)
    report = await run_case("stream", pair.edge.url, model=MODEL, prompt=prompt)
    *output, done = report.result
    assert "".join(event["data"] for event in output) == text
    assert (done["event"], done["data"]) == ("done", "{}")
    create, stream = report.calls
    assert create["authorized"] and not stream["authorized"]
    assert stream["path"].startswith("/v1/streams/") and stream["status"] == 200


async def test_19_a_changed_token_opens_nothing(pair: Pair) -> None:
    url = (await pair.api.create(script(pieces=["a"])))["urls"]["stream"]
    changed = url[:-1] + ("b" if url[-1] != "b" else "c")
    report = await run_case("raw", pair.edge.url, url=changed)
    assert report.result["status"] == 404
    assert report.calls[0]["contentType"] == "application/problem+json"
    assert json.loads(report.result["body"])["status"] == 404


async def test_20_stream_keeps_every_unicode_line_end(pair: Pair) -> None:
    # B004: the bytes on the wire are right; this client splits at CR and LF only.
    pieces = ["x\u2028y", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "한글", "🙂", "end"]
    report = await run_case("stream", pair.edge.url, model=MODEL, prompt=script(pieces=pieces))
    assert "".join(event["data"] for event in report.result if event["event"] == "output") == "".join(pieces)


async def test_22_stream_of_a_failing_run_rejects_with_the_detail(pair: Pair) -> None:
    prompt = script(pieces=["a ", "b "], fail_after=1, fail_message="out of luck")
    report = await run_case("stream", pair.edge.url, model=MODEL, prompt=prompt)
    assert report.error is not None and json.loads(report.error["message"]) == {"detail": "out of luck"}


async def test_29_cancel_with_an_empty_json_body(pair: Pair) -> None:
    made = await pair.api.create(script(pieces=["a "], repeat=10_000, delay_ms=20))
    report = await run_case("cancel", pair.edge.url, id=made["id"])
    assert report.calls[0]["status"] == 200 and report.result["status"] == "canceled"
    again = await run_case("cancel", pair.edge.url, id=made["id"])
    assert again.result == report.result


async def test_30_an_unknown_prediction_is_an_api_error(pair: Pair) -> None:
    report = await run_case("get", pair.edge.url, id="nope")
    assert report.error is not None
    assert (report.error["name"], report.error["status"]) == ("ApiError", 404)
    assert report.calls[0]["contentType"] == "application/problem+json"
    assert '"title":"Prediction not found"' in report.error["message"]


async def test_33_paginate_reads_every_prediction_once(pair: Pair) -> None:
    ids = await pair.api.create_many(250)
    report = await run_case("paginate", pair.edge.url)
    assert report.error is None and all(call["status"] == 200 for call in report.calls)
    assert [len(page) for page in report.result[:2]] == [100, 100]
    found = [found for page in report.result for found in page]
    assert found[:250] == ids and len(set(found)) == len(found)


async def test_36_a_wait_above_the_limit_is_held_for_the_limit_at_most(pair: Pair) -> None:
    prompt, text = numbered(10, delay_ms=20)
    report = await run_case("create_wait_120", pair.edge.url, model=MODEL, prompt=prompt)
    assert report.result["status"] == "succeeded" and "".join(report.result["output"]) == text
    assert (report.calls[0]["prefer"], report.calls[0]["applied"]) == ("wait=120", "wait=60")


async def test_b193_a_javascript_date_reads_the_times(pair: Pair) -> None:
    made = await pair.api.create(script(pieces=["a"]), {"Prefer": "wait"})
    report = await run_case("dates", pair.edge.url, id=made["id"])
    wanted = [made[name] for name in ("created_at", "started_at", "completed_at")]
    assert report.result == [int(datetime.fromisoformat(text).timestamp() * 1000) for text in wanted]
