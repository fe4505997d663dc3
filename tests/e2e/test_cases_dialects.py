"""Cases of public bug reports on the OpenAI and Anthropic APIs, each named after its number."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.dialects import (
    ALL,
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    WITH_WHOLE,
    Dialect,
    name_of,
    open_stream,
    read_stream,
)
from tests.support.pair import LIMIT_S, MODEL, Pair, Reading, numbered, script

LINE_ENDS = ["x\u2028y", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r\n", "漢😀", "end"]
STOPPABLE = (CHAT, COMPLETIONS, MESSAGES)


async def stream(pair: Pair, dialect: Dialect, prompt: str, **fields: object) -> Reading:
    with anyio.fail_after(LIMIT_S):
        return await read_stream(pair.http, pair.edge.url, dialect, prompt, **fields)


async def ask(pair: Pair, dialect: Dialect, prompt: str, **fields: object) -> httpx.Response:
    return await pair.http.post(pair.edge.url + dialect.path, json=dialect.body(prompt, **fields))


async def whole(pair: Pair, dialect: Dialect, prompt: str, **fields: object) -> dict[str, Any]:
    answer = await ask(pair, dialect, prompt, **fields)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def stops(dialect: Dialect, *texts: str) -> dict[str, object]:
    return {"stop_sequences" if dialect is MESSAGES else "stop": list(texts)}


def said(reading: Reading) -> list[Any]:
    return [json.loads(event.data) for event in reading.events if event.data != "[DONE]"]


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_b004_json_stays_on_one_line_by_any_reader_s_measure(pair: Pair, dialect: Dialect) -> None:
    reading = await stream(pair, dialect, script(pieces=LINE_ENDS))
    assert dialect.text(reading) == "".join(LINE_ENDS)
    for line in reading.raw.decode().splitlines():  # splits at every Unicode line end
        if line.startswith("data: ") and line != "data: [DONE]":
            json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_b005_b006_b008_frames_are_data_and_keep_alives_are_none(pair: Pair, dialect: Dialect) -> None:
    prompt = script(pieces=["a ", "b"], first_delay_ms=1300, delay_ms=[0, 700])
    reading = await stream(pair, dialect, prompt)
    assert dialect.text(reading) == "a b" and b"\r" not in reading.raw
    lines = reading.raw.decode().split("\n")
    names = {line.partition(":")[0] for line in lines}
    assert names <= {"", "data", "event"}, "no id, no retry"
    if dialect is MESSAGES:
        assert reading.raw.count(b"event: ping\n") > 2
    else:
        comments = [i for i, line in enumerate(lines) if line.startswith(":")]
        assert len(comments) > 2 and all(lines[i + 1] for i in comments[:-1]), "a blank line is an event"
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("dialect", STOPPABLE, ids=name_of)
@pytest.mark.parametrize(
    ("pieces", "stop", "text", "tokens"),
    [
        (["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC", 5),
        ([" beta", " gam", "ma", " delta"], ["beta gamma"], " ", 3),
        ([" beta", " gam", "ma", " delta"], ["gamma"], " beta ", 3),
        ([" beta", " gam", "ma", " delta"], ["m"], " beta ga", 2),
        (["alpha", " be", "ta gam", "ma x"], [" beta gamma"], "alpha", 4),
    ],
)
async def test_b108_b109_b112_a_stop_string_never_shows(
    pair: Pair, dialect: Dialect, pieces: list[str], stop: list[str], text: str, tokens: int
) -> None:
    prompt = script(pieces=pieces, delay_ms=5)
    reading = await stream(pair, dialect, prompt, **stops(dialect, *stop))
    body = await whole(pair, dialect, prompt, **stops(dialect, *stop))
    assert dialect.text(reading) == dialect.whole(body) == text
    record = await newest(pair)
    if dialect is MESSAGES:
        assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", stop[0])
        assert said(reading)[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop[0]}
        assert body["usage"]["output_tokens"] == record.usage.output_tokens
    else:
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == record.usage.output_tokens
    assert record.usage.output_tokens == tokens


async def newest(pair: Pair) -> pb.Prediction:
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    return page.predictions[0]


@pytest.mark.parametrize("dialect", STOPPABLE, ids=name_of)
async def test_b115_stop_lists_of_every_length(pair: Pair, dialect: Dialect) -> None:
    prompt, text = numbered(3)
    assert dialect.whole(await whole(pair, dialect, prompt, until=None)) == text
    for count in (0, 4, 5, 16):
        body = await whole(pair, dialect, prompt, **stops(dialect, *(f"never{n}" for n in range(count))))
        assert dialect.whole(body) == text
    for bad in ([f"x{n}" for n in range(17)], [f"x{n}" for n in range(1000)], [""]):
        answer = await ask(pair, dialect, prompt, **stops(dialect, *bad))
        assert answer.status_code == 400 and "stop" in answer.json()["error"]["message"]
        assert "16" in answer.text or bad == [""]


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 1}, {"top_p": 0}, {"top_p": 0.0001}, {"top_k": 0}, {"top_k": 1}, {"min_p": 0},
        {"top_k": -1}, {"seed": -1}, {"seed": 2**63 - 1}, {"temperature": 2, "presence_penalty": -2},
        {"logit_bias": {"5": -100}}, {"max_tokens": None}, {"max_tokens": 10**9},
        {"user": "x", "store": True},
        {"tools": [], "tool_choice": "none", "unheard_of": {"a": 1}, "reasoning_effort": "low"},
        {"n": None, "stop": None, "response_format": {"type": "text"}, "logit_bias": None},
        {"max_completion_tokens": 9, "max_tokens": 3},
    ],
    ids=str,
)  # fmt: skip
async def test_b119_b123_b126_what_openai_takes_is_taken(pair: Pair, fields: dict[str, object]) -> None:
    prompt, text = numbered(6)
    assert CHAT.whole(await whole(pair, CHAT, prompt, **fields)) == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": -0.1}, "top_p"), ({"top_p": 1.1}, "top_p"), ({"seed": -5}, "seed"), ({"n": 0}, "n"),
        ({"n": -1}, "n"), ({"n": 1000}, "n"), ({"n": "2"}, "n"), ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 25}, "top_logprobs"), ({"logprobs": 25}, "logprobs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages"), ({"messages": {}}, "messages"), ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.[0].content"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages.[0].tool_calls.[0].id"),
        ({"tools": [{"type": "function"}]}, "tools.[0].function"),
        ({"tool_choice": "required"}, "tool_choice"), ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"model": 5}, "model"), ({"model": None}, "model"),
        ({"min_tokens": 7, "max_tokens": 5}, "min_tokens"),
        ({"echo": True}, "echo"), ({"continue_final_message": True}, "continue_final_message"),
    ],
    ids=str,
)  # fmt: skip
async def test_b128_a_refusal_names_its_parameter(pair: Pair, fields: dict[str, object], param: str) -> None:
    answer = await ask(pair, CHAT, "x", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["code"] and error["message"] and "/" not in error["message"].replace("/v1", "")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"), ({"top_k": -1}, "top_k"), ({"messages": []}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content"),
        ({"messages": [{"role": r, "content": ""} for r in ("user", "assistant")]}, "messages"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"), ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"stop_sequences": "x"}, "stop_sequences"),
    ],
    ids=str,
)  # fmt: skip
async def test_anthropic_refusals_name_their_field(pair: Pair, fields: dict[str, object], word: str) -> None:
    answer = await ask(pair, MESSAGES, "x", **fields)
    body = answer.json()
    assert (answer.status_code, body["type"]) == (400, "error")
    assert body["error"]["type"] == "invalid_request_error" and word in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS], ids=name_of)
async def test_b120_several_choices(pair: Pair, dialect: Dialect) -> None:
    prompt, text = numbered(3)
    body = await whole(pair, dialect, prompt, n=2, temperature=0)
    assert [dialect.whole({"choices": [choice]}) for choice in body["choices"]] == [text, text]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    one = await whole(pair, dialect, prompt, temperature=0)
    assert body["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert body["usage"]["completion_tokens"] == 2 * one["usage"]["completion_tokens"]
    reading = await stream(pair, dialect, prompt, n=3)
    chunks = [chunk["choices"][0] for chunk in said(reading)]
    if dialect is CHAT:
        assert [c["index"] for c in chunks[:3]] == [0, 1, 2] and all("role" in c["delta"] for c in chunks[:3])
        assert not any("role" in c["delta"] for c in chunks[3:])
    assert sorted(c["index"] for c in chunks if c["finish_reason"]) == [0, 1, 2]
    pieces = [c["delta"].get("content", "") if dialect is CHAT else c["text"] for c in chunks]
    for index in range(3):
        own = [piece for piece, c in zip(pieces, chunks, strict=True) if c["index"] == index]
        assert "".join(own) == text
    # One prediction a choice, all of them in the list.
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=3))
    assert {dict(p.labels)["api"] for p in page.predictions} == {f"openai.{dialect.name}"}


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS], ids=name_of)
async def test_b120_numbers_of_choices_that_are_none(pair: Pair, dialect: Dialect) -> None:
    prompt, _ = numbered(3)
    for bad in (0, -1, 1000, 1.5, "2"):
        for streamed in (False, True):
            answer = await ask(pair, dialect, prompt, n=bad, stream=streamed)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    if dialect is COMPLETIONS:
        answer = await ask(pair, dialect, prompt, n=2, best_of=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")


async def test_b122_b123_token_limits(pair: Pair) -> None:
    words = "tell me"
    del_limit = {"max_tokens": None}
    assert (await whole(pair, COMPLETIONS, words, **del_limit))["usage"]["completion_tokens"] == 16
    assert (await whole(pair, CHAT, words, **del_limit))["usage"]["completion_tokens"] > 16
    for dialect in (CHAT, COMPLETIONS):
        body = await whole(pair, dialect, words, max_tokens=1)
        assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (1, "length")
    body = await whole(pair, MESSAGES, words, max_tokens=1)
    assert (body["usage"]["output_tokens"], body["stop_reason"]) == (1, "max_tokens")
    body = await whole(pair, RESPONSES, words, max_output_tokens=1)
    assert (body["usage"]["output_tokens"], body["status"]) == (1, "incomplete")


async def test_b130_too_long_a_prompt_is_refused_before_anything_is_stored(pair: Pair) -> None:
    await whole(pair, CHAT, numbered(1)[0])
    before = (await newest(pair)).id
    for dialect in WITH_WHOLE:
        answer = await ask(pair, dialect, "x" * 250_000)
        assert answer.status_code == 400
        if dialect is not MESSAGES:
            assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert (await newest(pair)).id == before


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], 5, {}, [1, "x"], [[1], []], None], ids=str)
async def test_b132_empty_prompts(pair: Pair, prompt: object) -> None:
    answer = await pair.http.post(pair.edge.url + COMPLETIONS.path, json={"model": MODEL, "prompt": prompt})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"a":1}x', b"{'a':1}", b'{"a":NaN}', b"[]", b"null", b'"x"', b"5", b"true",
        b"[" * 20_000, b'{"model":"x","messages":' + b"[" * 100_000, b'{"prompt":"\xff\xfe"}',
        '{"a":1}'.encode("utf-16"), b" " * 100_000,
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)  # fmt: skip
async def test_b136_b138_b140_b142_bodies_that_are_none(pair: Pair, dialect: Dialect, body: bytes) -> None:
    answer = await pair.http.post(pair.edge.url + dialect.path, content=body)
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"].isprintable()


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_b146_b147_b148_a_failure_in_mid_stream_is_told(pair: Pair, dialect: Dialect) -> None:
    prompt = script(pieces=["a ", "b ", "c"], delay_ms=[0, 0, 100], fail_after=2, fail_message="out of luck")
    reading = await stream(pair, dialect, prompt)
    assert dialect.text(reading) == "a b " and reading.status == 200
    names = [event.event for event in reading.events]
    assert "message_stop" not in names and "response.completed" not in names
    (at,) = [i for i, event in enumerate(reading.events) if event.event == "error"]
    told = json.loads(reading.events[at].data)
    assert told["error"]["message"] == "out of luck"
    after = [event.data for event in reading.events[at + 1 :]]
    match dialect.name:
        case "chat" | "completions":
            assert after == ["[DONE]"]
            assert not any(chunk["choices"][0]["finish_reason"] for chunk in said(reading)[:-1])
        case "responses":
            assert json.loads(after[0])["response"]["status"] == "failed" and len(after) == 1
        case _:
            assert after == []
    record = await newest(pair)
    assert (record.status, record.error) == (pb.STATUS_FAILED, "out of luck")
    assert reading.headers["x-request-id"] == record.id


@pytest.mark.parametrize("dialect", WITH_WHOLE, ids=name_of)
async def test_b150_a_failure_is_never_a_200(pair: Pair, dialect: Dialect) -> None:
    prompt = script(pieces=["a "], repeat=40, fail_after=30, fail_message="out of luck")
    answer = await ask(pair, dialect, prompt)
    assert answer.status_code == 500 and answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"]["message"] == "out of luck"
    assert answer.headers["x-request-id"] == (await newest(pair)).id


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_a_failure_before_the_first_output_has_a_status(pair: Pair, dialect: Dialect) -> None:
    reading = await stream(pair, dialect, script(oom=True))
    assert reading.status == 500


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/nope", "openai"), ("/openai/v1/nope", "openai"), ("/v1/responses/nope", "openai"),
        ("/v1/messages/nope", "anthropic"), ("/anthropic/v1/nope", "anthropic"), ("/v1/nope", "problem"),
        ("/v1/chat/%ff", "openai"),
    ],
)  # fmt: skip
async def test_b151_unknown_paths_have_their_api_s_shape(pair: Pair, path: str, shape: str) -> None:
    for method in ("GET", "PUT", "POST"):
        answer = await pair.http.request(method, pair.edge.url + path)
        assert answer.status_code == 404
        check_shape(answer, shape)


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_b151_methods_and_sizes_have_their_api_s_shape(pair: Pair, dialect: Dialect) -> None:
    shape = "anthropic" if dialect is MESSAGES else "openai"
    answer = await pair.http.put(pair.edge.url + dialect.path)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    check_shape(answer, shape)
    answer = await pair.http.post(pair.edge.url + dialect.path, content=b" " * 2_000_000)
    assert answer.status_code == 413
    check_shape(answer, shape)


def check_shape(answer: httpx.Response, shape: str) -> None:
    body = answer.json()
    if shape == "problem":
        assert body["title"] and body["status"] == answer.status_code
        return
    assert body["error"]["message"] and body["error"]["type"]
    assert (body.get("type") == "error") == (shape == "anthropic")


async def test_b153_every_chunk_is_whole(pair: Pair) -> None:
    for dialect, kind in ((CHAT, "chat.completion.chunk"), (COMPLETIONS, "text_completion")):
        reading = await stream(pair, dialect, numbered(4)[0], stream_options={"include_usage": True})
        *chunks, last = said(reading)
        assert reading.events[-1].data == "[DONE]"
        heads = {(c["id"], c["object"], c["created"], c["model"]) for c in (*chunks, last)}
        assert len(heads) == 1
        (head,) = heads
        assert head[1] == kind and type(head[2]) is int and head[3] == MODEL
        assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks)
        record = await newest(pair)
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == record.usage.output_tokens
        assert last["usage"]["prompt_tokens"] == record.usage.input_tokens
        assert head[0].endswith(record.id)
        without = said(await stream(pair, dialect, numbered(4)[0]))
        assert all("usage" not in chunk and chunk["choices"] for chunk in without)


async def test_b157_input_tokens_agree_everywhere(pair: Pair) -> None:
    prompt, _ = numbered(4)
    body = MESSAGES.body(prompt, system="You count.")
    del body["max_tokens"]
    counted = await pair.http.post(pair.edge.url + "/v1/messages/count_tokens", json=body)
    reading = await stream(pair, MESSAGES, prompt, system="You count.")
    answer = await whole(pair, MESSAGES, prompt, system="You count.")
    start, delta = said(reading)[0], said(reading)[-2]
    count = counted.json()["input_tokens"]
    assert count == answer["usage"]["input_tokens"] == start["message"]["usage"]["input_tokens"] > 0
    record = await newest(pair)
    assert delta["usage"]["output_tokens"] == answer["usage"]["output_tokens"] == record.usage.output_tokens


async def test_b158_the_order_and_form_of_a_message_s_events(pair: Pair) -> None:
    reading = await stream(pair, MESSAGES, numbered(3, delay_ms=20)[0])
    assert all(event.event == json.loads(event.data)["type"] for event in reading.events)
    names = [event.event for event in reading.events if event.event != "ping"]
    deltas = names.count("content_block_delta")
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = said(reading)[0]["message"]
    assert message.keys() == {
        "id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage",
    }  # fmt: skip
    assert (message["type"], message["role"], message["content"]) == ("message", "assistant", [])
    assert message["stop_reason"] is None and message["stop_sequence"] is None
    record = await newest(pair)
    assert message["id"] == f"msg_{record.id}" and reading.headers["request-id"] == record.id


async def test_b159_no_text_makes_no_block(pair: Pair) -> None:
    body = await whole(pair, MESSAGES, script(pieces=[]))
    assert (body["content"], body["stop_reason"]) == ([], "end_turn")
    reading = await stream(pair, MESSAGES, script(pieces=[]))
    names = [event.event for event in reading.events if event.event != "ping"]
    assert names == ["message_start", "message_delta", "message_stop"]
    chat = await whole(pair, CHAT, script(pieces=[]))
    assert chat["choices"][0]["message"]["content"] == ""


async def test_b107_tokens_of_half_a_character(pair: Pair) -> None:
    prompt = script(pieces=["a"], hex=["f09f", "9982", "62"])
    fields = {"logprobs": True, "top_logprobs": 2}
    body = await whole(pair, CHAT, prompt, **fields)
    content = body["choices"][0]["logprobs"]["content"]
    reading = await stream(pair, CHAT, prompt, **fields)
    streamed = [
        entry
        for chunk in said(reading)
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert streamed == content
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "a🙂b"
    assert all(entry["token"].isprintable() and len(entry["top_logprobs"]) == 2 for entry in content)


async def test_b107_tokens_of_half_a_character_in_completions(pair: Pair) -> None:
    prompt = script(pieces=["a"], hex=["f09f", "9982", "62"])
    body = await whole(pair, COMPLETIONS, prompt, logprobs=2)
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", r"bytes:\xf0\x9f", r"bytes:\x99\x82", "b"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert all(len(top) == 2 for top in logprobs["top_logprobs"])
    reading = await stream(pair, COMPLETIONS, prompt, logprobs=2)
    streamed = [chunk["choices"][0]["logprobs"] for chunk in said(reading) if chunk["choices"][0]["logprobs"]]
    for name, entries in logprobs.items():
        assert [entry for part in streamed for entry in part[name]] == entries


async def test_token_prompts_and_echo(pair: Pair) -> None:
    answer = await pair.http.post(
        pair.edge.url + COMPLETIONS.path,
        json={"model": MODEL, "prompt": [list(b"one"), list(b"two")], "max_tokens": 2},
    )
    body = answer.json()
    assert [c["index"] for c in body["choices"]] == [0, 1] and body["usage"]["completion_tokens"] == 4
    prompt, text = numbered(3)
    assert COMPLETIONS.whole(await whole(pair, COMPLETIONS, prompt, echo=True)) == prompt + text
    assert COMPLETIONS.text(await stream(pair, COMPLETIONS, prompt, echo=True)) == prompt + text
    refused = await pair.http.post(
        pair.edge.url + COMPLETIONS.path, json={"model": MODEL, "prompt": [1, 2], "echo": True}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


@pytest.mark.parametrize("prefix", ["", "/openai", "/anthropic"])
async def test_models_are_readable_by_everybody(pair: Pair, prefix: str) -> None:
    for headers in ({}, {"anthropic-version": "2023-06-01", "x-api-key": "k"}):
        body = (await pair.http.get(f"{pair.edge.url}{prefix}/v1/models", headers=headers)).json()
        (model,) = body["data"]
        assert (body["object"], body["has_more"], body["first_id"]) == ("list", False, MODEL)
        assert (model["id"], model["object"], model["type"]) == (MODEL, "model", "model")
        for name in (MODEL, MODEL.replace("/", "%2F"), MODEL.partition("/")[2]):
            assert (await pair.http.get(f"{pair.edge.url}{prefix}/v1/models/{name}")).json() == model
        missing = await pair.http.get(f"{pair.edge.url}{prefix}/v1/models/nope", headers=headers)
        assert missing.status_code == 404
        check_shape(missing, "anthropic" if headers else "openai")


async def test_a_cancel_through_the_api_ends_a_stream_as_an_error(pair: Pair) -> None:
    prompt = script(pieces=["a "], repeat=100_000, delay_ms=10)
    with anyio.fail_after(LIMIT_S):
        for dialect in ALL:
            async with open_stream(pair.http, pair.edge.url, dialect, prompt) as reading:
                while not dialect.text(reading):
                    await anext(reading)
                record = reading.headers["x-request-id"]
                await pair.http.post(f"{pair.edge.url}/v1/predictions/{record}/cancel")
                await reading.to_end()
            assert [event.event for event in reading.events].count("error") == 1
