"""Cases of public bug reports on SSE streams and texts, each named after its number."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.pair import LIMIT_S, Pair, numbered, script

LONG = script(pieces=["a "], repeat=10_000, delay_ms=20)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


async def both(pair: Pair, prompt: str, **given: Any) -> tuple[str, str, dict[str, Any]]:
    """Return the text by stream, by GET, and the object."""
    made = await pair.api.create(prompt, **given)
    reading = await pair.api.read(made)
    stored = await pair.api.get(made)
    return reading.text, "".join(stored["output"] or []), stored


async def grpc_end(pair: Pair, made: dict[str, Any]) -> pb.Prediction:
    """Return the prediction as gRPC has it once it has ended."""
    get = rpc.GetPredictionRequest(id=made["id"], wait={"seconds": LIMIT_S})
    return await pair.stubs.predictions.GetPrediction(get)


async def test_b001_line_feeds_survive(pair: Pair) -> None:
    streamed, stored, _ = await both(pair, script(pieces=["a", "\n", "\n\n", "b"]))
    assert streamed == stored == "a\n\n\nb"
    reading = await pair.api.read(await pair.api.create(script(pieces=["\n"])))
    assert reading.raw.count(b"data: \ndata: \n\n") == 1


async def test_b004_unicode_line_ends_are_kept_on_the_wire(pair: Pair) -> None:
    pieces = ["x\u2028y", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c"]
    streamed, stored, _ = await both(pair, script(pieces=pieces))
    assert streamed == stored == "".join(pieces)


async def test_b005_lines_end_with_lf_and_keep_alives_are_comments(pair: Pair) -> None:
    prompt = script(pieces=["a\r\n", "\r", "b"], delay_ms=[0, 700, 0])
    reading = await pair.api.read(await pair.api.create(prompt))
    assert reading.text == "a\n\nb"
    assert b"\r" not in reading.raw
    lines = reading.raw.decode().split("\n")
    comments = [line for line in lines if line.startswith(":")]
    assert len(comments) >= 2 and set(comments) == {":"}
    assert {line.partition(":")[0] for line in lines if line} == {"", "event", "id", "data"}


async def test_b018_compression_holds_nothing_back(pair: Pair) -> None:
    made = await pair.api.create(LONG)
    with anyio.fail_after(LIMIT_S):
        async with pair.api.stream(made, {"Accept-Encoding": "gzip, br, zstd"}) as reading:
            assert "content-encoding" not in reading.headers
            await reading.until_events(3)
            # It is far from its end: what came was not held back for more.
            assert (await pair.api.get(made))["status"] == "processing"
            assert len(reading.output) >= 3
        await pair.api.cancel(made)


async def test_b019_headers_come_before_the_first_token(pair: Pair) -> None:
    made = await pair.api.create(script(pieces=["a"], first_delay_ms=60_000))
    with anyio.fail_after(LIMIT_S):
        async with pair.api.stream(made) as reading:
            assert reading.status == 200
            assert await anext(reading) == b":\n"
        await pair.api.cancel(made)


async def test_b020_proxies_are_told_not_to_buffer(pair: Pair) -> None:
    made = await pair.api.create(LONG)
    with anyio.fail_after(LIMIT_S):
        async with pair.api.stream(made) as reading:
            assert reading.headers["x-accel-buffering"] == "no"
            directives = {part.strip() for part in reading.headers["cache-control"].split(",")}
            assert {"no-cache", "no-transform"} <= directives
            for count in (2, 4, 8):
                await reading.until_events(count)
                assert (await pair.api.get(made))["status"] == "processing", "it came in one lump"
        await pair.api.cancel(made)


async def test_b021_a_silent_prefill_and_a_queue_are_kept_alive(narrow: Pair) -> None:
    silent = script(pieces=["a"], prefill_ms=60_000, prefill_tokens=10)
    with anyio.fail_after(LIMIT_S):
        in_prefill = await narrow.api.create(silent)
        queued = await narrow.api.create(silent)
        for made in (in_prefill, queued):
            async with narrow.api.stream(made) as reading:
                while reading.raw.count(b":\n") < 4:
                    await anext(reading)
                assert reading.raw.replace(b":\n", b"") == b""
        waited = await narrow.api.create(silent, {"Prefer": "wait=1"})
        assert waited["status"] == "starting"
        for made in (waited, queued, in_prefill):
            assert (await narrow.api.cancel(made)).json()["status"] == "canceled"


async def test_b027_the_media_type_is_that_of_event_streams(pair: Pair) -> None:
    made = await pair.api.create(script(pieces=["a"]), {"Prefer": "wait"})
    for query in ("", "?last_event_id=zzz"):
        async with pair.api.stream(made, query=query) as reading:
            assert reading.status == 200
            assert reading.headers["content-type"].partition(";")[0] == "text/event-stream"
            await reading.until_events(1)
            assert (reading.events[0].event, reading.events[0].data) == ("output", "a")


async def test_b031_an_id_that_is_not_this_streams_own_replays_it_from_its_start(pair: Pair) -> None:
    first = await pair.api.create(numbered(9, delay_ms=1)[0])
    foreign = await pair.api.read(first)
    second = await pair.api.create(numbered(5, delay_ms=1)[0])
    # Ids name the second of the creation and a place in the log. Of two predictions made in the same
    # second an id may be a place in both: then it resumes there, and shows nothing of the other.
    while second["created_at"][:19] == first["created_at"][:19]:
        second = await pair.api.create(numbered(5, delay_ms=1)[0])
    whole = await pair.api.read(second)
    created_s = whole.ids[0].partition(":")[0]
    wrong = ["zzz", "-1", "", f"{created_s}:999", f"{created_s}:-1", "\x01abc", "9" * 5000, "5", *foreign.ids]
    for name in wrong:
        reading = await pair.api.read(second, {"Last-Event-ID": name.encode()})
        if reading.status == 200:
            assert reading.text == whole.text, name[:20]
        else:
            assert reading.status in (204, 400), name[:20]
    assert (await pair.api.read(second, {"Last-Event-ID": whole.ids[-1]})).status == 204


async def test_b033_ids_are_the_same_for_all_readers_and_after_a_restart_of_the_edge(pair: Pair) -> None:
    prompt, text = numbered(60, delay_ms=10)
    with anyio.fail_after(60):
        made = await pair.api.create(prompt)
        async with pair.api.stream(made) as early:
            await early.until_events(3)
            async with pair.api.stream(made) as late:
                await late.to_done()
                await early.to_done()
        await pair.edge.kill()
        await pair.edge.start()
        await pair.edge.ready()
        again = await pair.api.read(made)
    data = [{event.id: event for event in reading.events} for reading in (early, late, again)]
    assert early.text == late.text == again.text == text
    for reading in (early, late, again):
        places = [int(name.partition(":")[2]) for name in reading.ids]
        assert places == sorted(set(places)), "ids grow strictly"
    # Tokens may be grouped differently; where an id comes twice, the text up to it is the same.
    for one in data[:2]:
        for name in one.keys() & data[2].keys():
            texts = [
                "".join(
                    e.data for e in found.values() if _place(e.id) <= _place(name) and e.event == "output"
                )
                for found in (one, data[2])
            ]
            assert texts[0] == texts[1]


def _place(name: str) -> int:
    return int(name.partition(":")[2].partition(".")[0])


@pytest.mark.parametrize("way", ["header", "query"])
async def test_b034_a_cut_connection_misses_nothing(pair: Pair, way: str) -> None:
    prompt, text = numbered(60, delay_ms=8)
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt)
        async with pair.api.stream(made) as cut:
            await cut.until_events(5)
        seen = "".join(cut.output)
        while len("".join((await pair.api.get(made))["output"] or [])) < len(seen) + 60:
            await anyio.sleep(0.005)
        last = cut.ids[-1]
        headers = {"Last-Event-ID": last} if way == "header" else {}
        query = "" if way == "header" else f"?last_event_id={last}"
        rest = await pair.api.read(made, headers, query)
    assert all(event.id for event in (*cut.events, *rest.events))
    assert seen + rest.text == text


@pytest.mark.parametrize("end", ["eos", "length", "stop", "cancel", "error"])
async def test_b101_a_cut_off_character_at_the_end_is_one_replacement(pair: Pair, end: str) -> None:
    half = ["61", "f0", "9f", "98"]
    given: dict[str, Any] = {}
    match end:
        case "eos" | "length":
            prompt = script(hex=half, end=end)
        case "stop":
            prompt, given = script(hex=[*half, "53544f50"]), {"stop": ["STOP"]}
        case "error":
            prompt = script(hex=half, fail_after=4)
        case _:
            prompt = script(hex=[*half, "61"], delay_ms=[0, 0, 0, 0, 60_000])
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt, **given)
        if end == "cancel":
            while (await grpc_now(pair, made)).usage.output_tokens < 1:
                await anyio.sleep(0.005)
            await pair.api.cancel(made)
        reading = await pair.api.read(made)
        stored = "".join((await pair.api.get(made))["output"])
    assert reading.done is not None
    assert reading.text == stored
    # A cancel may come before the half character did.
    assert stored == "a\ufffd" or (end == "cancel" and stored == "a")


async def grpc_now(pair: Pair, made: dict[str, Any]) -> pb.Prediction:
    return await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=made["id"]))


async def test_b102_each_emoji_comes_with_its_last_byte(pair: Pair) -> None:
    emoji = "😀😁😂😃😄😅😆😉😊😋"
    hexes = [bytes([byte]).hex() for byte in emoji.encode()]
    # After the fifth's last byte, and again after one byte of the sixth, nothing comes for long.
    for cut in (20, 21):
        delays = [2] * cut + [60_000]
        with anyio.fail_after(LIMIT_S):
            made = await pair.api.create(script(hex=hexes, delay_ms=delays))
            async with pair.api.stream(made) as reading:
                while reading.text != emoji[:5]:
                    await anext(reading)
                    assert emoji.startswith(reading.text)
            await pair.api.cancel(made)
    streamed, stored, _ = await both(pair, script(hex=hexes, delay_ms=2))
    assert streamed == stored == emoji


async def test_b104_leading_blanks_are_kept(pair: Pair) -> None:
    for pieces in ([" leading"], ["  x"], [" ", " ", "x"], ["\n", " x"]):
        streamed, stored, _ = await both(pair, script(pieces=pieces))
        assert streamed == stored == "".join(pieces)


STOPS: list[tuple[str, list[str], list[str], str]] = [
    ("b108", ["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC"),
    ("b108", ["ABC", "DEF", "G", "HI", "K"], ["DEFGHIJ"], "ABCDEFGHIK"),
    ("b109", [" beta", " gam", "ma", " delta"], ["beta gamma"], " "),
    ("b109", [" beta", " gam", "ma", " delta"], ["gamma"], " beta "),
    ("b109", [" beta", " gam", "ma", " delta"], ["m"], " beta ga"),
    ("b112", ["alpha", " be", "ta gam", "ma x"], [" beta gamma"], "alpha"),
]


@pytest.mark.parametrize(
    ("case", "pieces", "stop", "text"), STOPS, ids=[f"{s[0]}-{s[2][0]}-{s[3]}" for s in STOPS]
)
async def test_b108_b109_b112_stop_strings(
    pair: Pair, case: str, pieces: list[str], stop: list[str], text: str
) -> None:
    # Repeated far beyond the stop: the engine must not run on behind it.
    matches = any(s in "".join(pieces) for s in stop)
    prompt = script(pieces=pieces, repeat=5000 if matches else 1)
    made = await pair.api.create(prompt, stop=stop)
    reading = await pair.api.read(made)
    ended = await grpc_end(pair, made)
    assert reading.text == "".join(ended.output) == "".join((await pair.api.get(made))["output"]) == text
    assert ended.finish_reason == pb.FINISH_REASON_STOP
    assert ended.HasField("matched_stop") == matches
    if matches:
        assert ended.matched_stop.text == stop[0]
        # Those that the stop swallowed are counted, and none beyond a batch behind it.
        assert ended.usage.output_tokens <= 3 * len(pieces)
        swallowed = next(n for n in range(len(pieces) + 1) if stop[0] in "".join(pieces[:n]))
        assert ended.usage.output_tokens >= swallowed


async def test_b061_a_wait_holds_until_the_end_or_its_limit(pair: Pair) -> None:
    quick = await pair.api.create(script(pieces=["a"], delay_ms=100), {"Prefer": "wait"})
    assert (quick["status"], quick["output"]) == ("succeeded", ["a"])
    prompt, text = numbered(12, delay_ms=50)
    in_time = await pair.api.create(prompt, {"Prefer": "wait=10"})
    assert in_time["status"] == "succeeded" and "".join(in_time["output"]) == text
    late = await pair.api.create(script(pieces=["a ", "b"], delay_ms=[0, 1300, 0]), {"Prefer": "wait=1"})
    assert (late["status"], late["output"]) == ("starting", None)
    assert (await pair.api.read(late)).text == "a b"


async def test_b193_times_have_one_form_in_any_time_zone(narrow: Pair) -> None:
    with anyio.fail_after(LIMIT_S):
        made = await narrow.api.create(script(pieces=["a"], delay_ms=300), {"Cancel-After": "1h"})
        assert made["started_at"] is None and made["completed_at"] is None
        await narrow.api.read(made)
        final = await narrow.api.get(made)
        ended = await grpc_end(narrow, made)
    times = [final[name] for name in ("created_at", "started_at", "completed_at", "deadline")]
    assert all(TIME.fullmatch(text) for text in times)
    assert times == sorted(times)
    assert final["created_at"] == ended.create_time.ToDatetime().isoformat(timespec="microseconds") + "Z"
    off = datetime.now(UTC) - datetime.fromisoformat(final["created_at"])
    assert abs(off) < timedelta(hours=1), "written in another zone than said"
