"""Replicate's Python client and raw HTTP on streams. Numbers are those of the contract's checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
import replicate
from replicate.prediction import Prediction
from replicate.stream import ServerSentEvent

from tests.conformance.replicate.python.wire import SILENCE_S, Wire, in_thread, replicate_client
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, running_pair, script

OUTPUT, DONE = ServerSentEvent.EventType.OUTPUT, ServerSentEvent.EventType.DONE


def stream(client: replicate.Client, prompt: str) -> list[ServerSentEvent]:
    """Return all events of `replicate.stream`."""
    return list(client.stream(MODEL, input={"prompt": prompt}))


async def test_12_stream_gives_the_text_and_done(py1: replicate.Client) -> None:
    prompt, text = numbered(30)
    events = await in_thread(stream, py1, prompt)
    assert "".join(str(event) for event in events) == text
    assert (events[-1].event, events[-1].data) == (DONE, "{}")
    assert len({event.id for event in events}) == len(events)


async def test_13_tokens_made_before_the_stream_opens_are_in_it(py1: replicate.Client) -> None:
    prompt, text = numbered(10, delay_ms=20)

    def act() -> str:
        prediction = py1.models.predictions.create(MODEL, input={"prompt": prompt})
        while len("".join(prediction.output or [])) < len("0 1 2 3 4 "):
            prediction.reload()
        return "".join(str(event) for event in prediction.stream())

    assert await in_thread(act) == text


async def test_14_a_stream_without_tokens_is_one_done(py1: replicate.Client) -> None:
    events = await in_thread(stream, py1, script())
    assert [(event.event, event.data) for event in events] == [(DONE, "{}")]


async def test_15_keep_alives_carry_a_silence(py1: replicate.Client, wire: Wire) -> None:
    # The client gives up after SILENCE_S without a byte; the model says nothing for longer than that.
    prompt = script(pieces=["a ", "b "], delay_ms=[0, 1000 * SILENCE_S * 1.4, 0])
    events = await in_thread(stream, py1, prompt)
    assert "".join(str(event) for event in events) == "a b "
    assert events[-1].event is DONE


async def test_16_any_text_arrives_with_line_feeds(py1: replicate.Client) -> None:
    pieces = ["\n", " a", "b\r\nc", "한글", "🙂", "\n\n", "  d", "\r", "e"]
    events = await in_thread(stream, py1, script(pieces=pieces))
    text = "".join(pieces).replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(str(event) for event in events) == text


async def test_17_events_that_look_like_links_stay_text(py1: replicate.Client) -> None:
    pieces = ["https://a.b/c", " ", "data:", "x,", "https:"]
    events = await in_thread(stream, py1, script(pieces=pieces))
    assert all(isinstance(event.data, str) for event in events)
    assert "".join(str(event) for event in events) == "".join(pieces)


async def test_21_a_failing_run_raises_its_detail(pair: Pair, py1: replicate.Client) -> None:
    prompt = script(pieces=["a ", "b "], fail_after=1, fail_message="out of luck")
    with pytest.raises(RuntimeError) as raised:
        await in_thread(stream, py1, prompt)
    assert json.loads(str(raised.value)) == {"detail": "out of luck"}
    reading = await pair.api.read(await pair.api.create(prompt))
    assert [event.event for event in reading.events] == ["output", "error", "done"]
    assert reading.done == {"reason": "error"}


async def test_23_cancel_in_mid_stream_ends_it(pair: Pair, py1: replicate.Client) -> None:
    prompt = script(pieces=["a "], repeat=10_000, delay_ms=20)

    def act() -> tuple[list[ServerSentEvent], str, dict[str, Any]]:
        prediction = py1.models.predictions.create(MODEL, input={"prompt": prompt})
        seen, status = [], ""
        for event in prediction.stream():
            seen.append(event)
            if len(seen) == 3:
                status = anyio.from_thread.run(in_thread, py1.predictions.cancel, prediction.id).status
        prediction.reload()
        return seen, status, prediction.dict()

    events, status, final = await in_thread(act)
    assert status == "canceled"
    assert (events[-1].event, events[-1].data) == (DONE, '{"reason":"canceled"}')
    assert final["status"] == "canceled" and final["completed_at"]
    assert "".join(final["output"]) == "".join(str(event) for event in events)


async def test_26_a_finished_stream_is_replayed_resumed_and_then_closed(pair: Pair) -> None:
    prompt, text = numbered(8)
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt, {"Prefer": "wait"})
        async with pair.api.stream(made) as whole:
            await whole.to_end()
        assert whole.text == text and whole.done == {}
        assert whole.raw.endswith(b"data: {}\n\n:408: 408 Request Timeout\n\n")
        middle = whole.ids[0]
        resumed = await pair.api.read(made, {"Last-Event-ID": middle})
        assert resumed.events == whole.events[1:]
        async with pair.api.stream(made, {"Last-Event-ID": whole.ids[-1]}) as over:
            assert over.status == 204
            await over.to_end()
        assert over.raw == b""


async def test_26_a_resume_in_mid_stream_gives_what_comes_after(pair: Pair) -> None:
    prompt, text = numbered(40, delay_ms=10)
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt)
        async with pair.api.stream(made) as first:
            await first.until_events(3)
        rest = await pair.api.read(made, {"Last-Event-ID": first.ids[2]})
        assert first.text.startswith("0 1 ")
        assert "".join(event.data for event in first.events[:3]) + rest.text == text


async def test_27_a_stream_whose_data_is_removed_is_one_comment(tmp_path: Path) -> None:
    service, edge = {"retention_data": "200ms"}, {"hold_after_done": "100ms"}
    with anyio.fail_after(60):
        async with running_pair(tmp_path, service, edge) as pair:
            made = await pair.api.create(numbered(3)[0], {"Prefer": "wait"})
            while not (await pair.api.get(made))["data_removed"]:
                await anyio.sleep(0.02)
            for headers in ({}, {"Last-Event-ID": "1:1"}):
                async with pair.api.stream(made, headers) as reading:
                    assert reading.status == 200
                    await reading.to_end()
                assert reading.raw.replace(b":\n", b"") == b":408: 408 Request Timeout\n\n"
            gone = await pair.api.get(made)
    assert (gone["input"], gone["output"], gone["logs"]) == ({}, None, "")
    assert gone["status"] == "succeeded" and Prediction(**gone).output is None


async def test_41_removed_data_leaves_a_record_that_parses_and_a_page_without_input(tmp_path: Path) -> None:
    prompt = numbered(3)[0]
    with anyio.fail_after(60):
        async with running_pair(tmp_path, {"retention_data": "300ms"}, {}) as pair:
            made = await pair.api.create(prompt, {"Prefer": "wait"})
            assert "0 1 2" in (await pair.http.get(made["urls"]["web"])).text
            while not (await pair.api.get(made))["data_removed"]:
                await anyio.sleep(0.02)
            with replicate_client(pair.edge.url, Wire()) as client:
                found = await anyio.to_thread.run_sync(client.predictions.get, made["id"])
            page = await pair.http.get(made["urls"]["web"])
    assert (found.status, found.output) == ("succeeded", None)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert "pieces" not in page.text and "0 1 2" not in page.text
