"""Streams of the OpenAI and Anthropic APIs that their callers can resume, because they asked to."""

from __future__ import annotations

import anyio
import httpx
import pytest

from edge.protocol.sse import SseParser
from tests.e2e.test_tools import ONE_CALL, TOOLS, WITH_TOOLS, block
from tests.support.dialects import ALL, CHAT, COMPLETIONS, MESSAGES, RESPONSES, Dialect, name_of, open_stream
from tests.support.pair import LIMIT_S, Pair, Reading, numbered, script, until_idle

ASKED = {"X-Resumable": "true"}
DIALECTS = pytest.mark.parametrize("dialect", ALL, ids=name_of)
PROMPT, TEXT = numbered(12, delay_ms=30)


@DIALECTS
async def test_a_cut_stream_goes_on_after_the_last_event(pair: Pair, dialect: Dialect) -> None:
    with anyio.fail_after(LIMIT_S):
        async with open_stream(pair.http, pair.edge.url, dialect, PROMPT, ASKED) as reading:
            while len(dialect.text(reading)) < 6:
                await anext(reading)
            where = httpx.URL(pair.edge.url + dialect.path).join(reading.headers["location"])
            position = reading.parser.last_event_id
            prediction = reading.headers["x-request-id"]
        rest = await pair.http.get(where, headers={"Last-Event-ID": position})
        assert rest.status_code == 200 and rest.headers["x-request-id"] == prediction
        again = Reading(rest)
        again.events = SseParser().feed(rest.content)
        assert dialect.text(reading) + dialect.text(again) == TEXT
        kinds = [event.event for event in (*reading.events, *again.events)]
        assert kinds.count("message_start") == kinds.count("content_block_start") == int(dialect is MESSAGES)
        assert b'"delta":{"role":"assistant"' not in rest.content
        # Whoever has the end is told that there is no more; from the start all comes again.
        last = again.events[-1].id
        assert (await pair.http.get(where, headers={"Last-Event-ID": last})).status_code == 204
        whole = Reading(replay := await pair.http.get(where))
        whole.events = SseParser().feed(replay.content)
        assert dialect.text(whole) == TEXT


MIXED = script(pieces=[*"ab ", "漢", "😀", "\n", "c"])
SAYS = script(pieces=list(f"Let me see. {block(city='Pune')} And {block(city='Oslo', days=[1, 2])}\nDone."))
CASES: list[tuple[Dialect, str, dict[str, object]]] = [
    *((dialect, MIXED, {}) for dialect in ALL),
    (CHAT, MIXED, {"logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, MIXED, {"logprobs": 2, "stream_options": {"include_usage": True}}),
    (COMPLETIONS, MIXED, {"echo": True}),
    (RESPONSES, MIXED, {"top_logprobs": 1, "instructions": "Count.", "metadata": {"a": "b"}}),
    *((dialect, SAYS, {"tools": TOOLS[dialect.name]}) for dialect in WITH_TOOLS),
    *((dialect, SAYS, {"tools": TOOLS[dialect.name], **ONE_CALL[dialect.name]}) for dialect in WITH_TOOLS),
]


@pytest.mark.parametrize(
    ("dialect", "prompt", "fields"),
    CASES,
    ids=[f"{dialect.name}-{'-'.join(fields) or 'plain'}" for dialect, _, fields in CASES],
)
async def test_whatever_frame_is_the_last_the_rest_comes_byte_for_byte(
    pair: Pair, dialect: Dialect, prompt: str, fields: dict[str, object]
) -> None:
    with anyio.fail_after(LIMIT_S):
        asked = dialect.body(prompt, stream=True, **fields)
        first = await pair.http.post(pair.edge.url + dialect.path, json=asked, headers=ASKED)
        assert first.status_code == 200, first.text
        where = httpx.URL(pair.edge.url + dialect.path).join(first.headers["location"])
        frames = first.content.removeprefix(b":\n").split(b"\n\n")[:-1]
        ids = [event.id for event in SseParser().feed(first.content)]
        assert len(ids) == len(set(ids)) == len(frames) and all(ids), "each frame has an id of its own"
        for place, last in enumerate(ids[:-1], 1):
            rest = await pair.http.get(where, headers={"Last-Event-ID": last})
            assert rest.content.removeprefix(b":\n").split(b"\n\n")[:-1] == frames[place:]
        end = await pair.http.get(where, headers={"Last-Event-ID": ids[-1]})
        assert (end.status_code, end.content) == (204, b"")


@DIALECTS
async def test_going_away_does_not_end_a_resumable_stream(pair: Pair, dialect: Dialect) -> None:
    with anyio.fail_after(LIMIT_S):
        async with open_stream(pair.http, pair.edge.url, dialect, PROMPT, ASKED) as reading:
            while not dialect.text(reading):
                await anext(reading)
        await until_idle(pair.stubs)
        found = await pair.http.get(f"{pair.edge.url}/v1/predictions/{reading.headers['x-request-id']}")
    assert found.json()["status"] == "succeeded" and "".join(found.json()["output"]) == TEXT


async def test_only_what_was_made_so_is_found_there(pair: Pair) -> None:
    made = await pair.api.create(PROMPT)
    for dialect in ALL:
        async with open_stream(pair.http, pair.edge.url, dialect, PROMPT) as attached:
            await attached.to_end()
        for name in (made["id"], attached.headers["x-request-id"], "a" * 26, "nope"):
            answer = await pair.http.get(f"{pair.edge.url}{dialect.path}/{name}/stream")
            assert answer.status_code == 404 and answer.json()["error"]["message"]
    body = CHAT.body(PROMPT, stream=True, n=2)
    answer = await pair.http.post(pair.edge.url + CHAT.path, json=body, headers=ASKED)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
