"""Bad input, by REST and by gRPC: refused naming the field, nothing stored, nobody else disturbed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import httpx
import pytest
from google.rpc import error_details_pb2, status_pb2

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.pair import LIMIT_S, MODEL, Pair, running_pair, script, until_idle

CONTEXT = 4096
NAN, INFINITE = math.nan, math.inf


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    service = {"engine_context_tokens": str(CONTEXT), "engine_slots": "2"}
    async with running_pair(tmp_path_factory.mktemp("pair"), service) as running:
        yield running


@asynccontextmanager
async def bystander(pair: Pair) -> AsyncIterator[None]:
    """Stream another prediction all the while: it must not notice, and be all that was stored."""
    known = {p.id for p in await listed(pair)}
    pieces = [f"{n} " for n in range(150)]
    made = await pair.api.create(script(pieces=pieces, delay_ms=10), max_tokens=2000)
    with anyio.fail_after(LIMIT_S):
        async with pair.api.stream(made) as reading:
            await reading.until_events(1)
            yield
            assert {p.id for p in await listed(pair)} - known == {made["id"]}
            await reading.to_done()
        assert reading.text == "".join(pieces)
        await until_idle(pair.stubs)


async def listed(pair: Pair) -> list[pb.Prediction]:
    """Return all that is stored."""
    answer = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1000))
    return list(answer.predictions)


# ------------------------------------------------------------------------------------------ REST

OUT_OF_BOUNDS: list[tuple[str, list[object]]] = [
    ("temperature", [-0.1, 2.1, -1, 1e308, "1", True, [], {}]),
    ("top_p", [-0.1, 1.1, "1", True]),
    ("top_k", [-2, 1.5, "1", True, -(10**30)]),
    ("min_p", [-0.1, 1.1, "0"]),
    ("presence_penalty", [-2.1, 2.1, "0"]),
    ("frequency_penalty", [-2.1, 2.1, "0"]),
    ("repetition_penalty", [0, -1, 10.1, "1"]),
    ("max_tokens", [0, -1, 1.5, "5", True, []]),
    ("max_new_tokens", [0, -1, 1.5, "5"]),
    ("min_tokens", [-1, 1.5, "5", 10**9]),
    ("seed", [-2, 2**63, 1.5, "5", True]),
    ("stop", [5, [5], [""], "", ["x" * 257], ["x"] * 17, {}]),
    ("stop_sequences", [5, [5], ["x" * 257], ["x"] * 17, {}]),
    ("json_schema", [5, [], "{", "[]", '"x"']),
    ("prompt", [5, True, [], {}, "", [[]]]),
    ("system_prompt", [5, {}]),
]
MESSAGES: list[object] = [
    5, {}, "x", [], [5], [{}], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 5}],
    [{"role": "nobody", "content": "x"}], [{"role": "user", "content": ""}],
    [{"role": "user", "content": [1]}],
]  # fmt: skip


def inner(text: bytes) -> bytes:
    return b'{"input":' + text + b"}"


RAW: list[tuple[str, bytes, int, str]] = [
    ("nothing", b"", 400, ""),
    ("cut off", b'{"input":{"prompt":"x"', 400, ""),
    ("cut off in a string", b'{"input":{"prompt":"x', 400, ""),
    ("nested 20,000 deep", b"[" * 20_000, 400, ""),
    ("nested 100,000 deep", b"[" * 100_000, 400, ""),
    ("closed again", b"[" * 100_000 + b"]" * 100_000, 400, ""),
    ("objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 400, ""),
    ("nested input", inner(b"[" * 100_000 + b"]" * 100_000), 400, ""),
    ("nested prompt", inner(b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), 400, ""),
    ("nested schema", inner(b'{"prompt":"x","json_schema":' + b'{"a":' * 40 + b"1" + b"}" * 41), 400, ""),
    ("NaN", inner(b'{"prompt":"x","temperature":NaN}'), 400, ""),
    ("Infinity", inner(b'{"prompt":"x","temperature":-Infinity}'), 400, ""),
    ("a number beyond double", inner(b'{"prompt":"x","temperature":1e999}'), 400, ""),
    ("invalid UTF-8", inner(b'{"prompt":"\xff\xfe"}'), 400, ""),
    ("half a character", inner('{"prompt":"é"}'.encode()[:-3] + b'"}'), 400, ""),
    ("Latin-1", inner('{"prompt":"é"}'.encode("latin-1")), 400, ""),
    ("UTF-16", '{"input":{"prompt":"x"}}'.encode("utf-16"), 400, ""),
    ("half a surrogate pair", inner(b'{"prompt":"\\ud800"}'), 400, ""),
    ("no object", b"[]", 422, "(root)"),
    ("null", b"null", 422, "(root)"),
    ("no input", b"{}", 422, "(root)"),
    ("input null", inner(b"null"), 422, "input"),
    ("input a list", inner(b"[]"), 422, "input"),
    ("input a string", inner(b'"x"'), 422, "input"),
    ("no prompt", inner(b"{}"), 422, "input"),
    ("prompt null", inner(b'{"prompt":null}'), 422, "input"),
    ("min above max", inner(b'{"prompt":"x","min_tokens":9,"max_tokens":8}'), 422, "input.min_tokens"),
    ("a webhook", b'{"input":{"prompt":"x"},"webhook":"http://127.0.0.1:1/"}', 422, "webhook"),
]


def fault_of(answer: httpx.Response, status: int, field: str) -> str:
    """Say what is wrong with the answer to bad input; nothing if it is right."""
    if answer.status_code != status:
        return f"{answer.status_code} {answer.text[:200]}"
    if answer.headers["content-type"] != "application/problem+json":
        return answer.headers["content-type"]
    problem = answer.json()
    if not (problem["status"] == status and problem["title"] and problem["detail"]):
        return f"an incomplete problem: {problem}"
    fields = [fault["field"] for fault in problem.get("invalid_fields", [])]
    if field and not any(name == field or name.startswith(f"{field}.") for name in fields):
        return f"{field} is not named: {problem}"
    return ""


async def test_bad_input_through_rest_is_refused_and_leaves_no_trace(pair: Pair) -> None:
    wrong: list[str] = []

    async def expect(what: str, answer: Awaitable[httpx.Response], status: int, field: str) -> None:
        if fault := fault_of(await answer, status, field):
            wrong.append(f"{what}: {fault}")

    async with bystander(pair):
        for name, values in OUT_OF_BOUNDS:
            for value in values:
                given = {"prompt": "x", name: value}
                await expect(f"{name}={str(value)[:40]}", pair.api.post(given), 422, f"input.{name}")
        for messages in MESSAGES:
            await expect(f"messages={messages}", pair.api.post({"messages": messages}), 422, "input.messages")
        for what, body, status, field in RAW:
            await expect(what, pair.api.post_raw(body), status, field)
        too_long = pair.api.post({"prompt": "x" * (CONTEXT + 1)})
        await expect("longer than the context", too_long, 422, "input.prompt")
        for path, status in (("models/local/other/predictions", 404), ("predictions/nope/cancel", 404)):
            url = f"{pair.edge.url}/v1/{path}"
            await expect(path, pair.http.post(url, json={"input": {"prompt": "x"}}), status, "")
        for version in ("local/other", "f" * 64, 5, None):
            url = f"{pair.edge.url}/v1/predictions"
            body = {"version": version, "input": {"prompt": "x"}}
            await expect(f"version={version}", pair.http.post(url, json=body), 422, "")
    assert wrong == []


async def test_every_fault_is_named_at_once_and_none_repeats_what_was_sent(pair: Pair) -> None:
    given = {"prompt": 5, "temperature": -1, "top_p": "SECRET", "stop": ["x"] * 17, "seed": 1.5}
    answer = await pair.api.post(given)
    fields = {fault["field"] for fault in answer.json()["invalid_fields"]}
    assert fields == {f"input.{name}" for name in given}
    assert "SECRET" not in answer.text


@pytest.mark.parametrize("cut", [b"", b'{"input":{"pro'])
async def test_a_body_that_is_shorter_than_announced_creates_nothing(pair: Pair, cut: bytes) -> None:
    before = await listed(pair)
    with anyio.fail_after(LIMIT_S):
        connection = await anyio.connect_tcp("127.0.0.1", pair.edge.port)
        async with connection:
            head = f"POST /v1/models/{MODEL}/predictions HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n"
            await connection.send(head.encode() + cut)
            await connection.send_eof()
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while await connection.receive():
                    pass
    assert [p.id for p in await listed(pair)] == [p.id for p in before]


# ------------------------------------------------------------------------------------------ gRPC


def generation(**fields: Any) -> pb.GenerationRequest:
    return pb.GenerationRequest(**{"prompt": "x", **fields})


def sampled(**fields: Any) -> pb.GenerationRequest:
    return generation(sampling=pb.Sampling(**fields))


def stopped(**fields: Any) -> pb.GenerationRequest:
    return generation(stopping=pb.Stopping(**fields))


def chat(*turns: tuple[str, str]) -> pb.GenerationRequest:
    messages = [pb.ChatMessage(role=role, content=content) for role, content in turns]
    return pb.GenerationRequest(chat=pb.ChatInput(messages=messages))


def talk(*more: pb.ChatMessage, **fields: Any) -> pb.GenerationRequest:
    first = pb.ChatMessage(role="user", content="x")
    return pb.GenerationRequest(chat=pb.ChatInput(messages=[first, *more], **fields))


def called(**fields: Any) -> pb.GenerationRequest:
    return talk(pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall(**{"name": "f", **fields})]))


def bad_chats() -> list[tuple[str, pb.GenerationRequest]]:
    """Return chats with tools, each with the field that must be named."""
    tool = pb.Tool(name="f")
    open_, call = pb.ChatMessage(role="assistant", content="a"), "messages[1].tool_calls[0]"
    texts = ["{", "[]", '{"a":NaN}', '{"a":1e999}', '{"a":' * 10_000 + "1" + "}" * 10_000]
    forced = {"tools": [tool], "forced_tool": pb.ForcedTool(name="f")}
    constrained = talk(**forced)
    constrained.regex = "a"
    return [
        *(("chat.tools[0].name", talk(tools=[pb.Tool(name=name)])) for name in ("", "a b", "x" * 65)),
        *(("chat.tools[0].parameters", talk(tools=[pb.Tool(name="f", parameters=t)])) for t in texts),
        *((f"{call}.arguments", called(arguments=t)) for t in texts),
        ("chat.tools[0].description", talk(tools=[pb.Tool(name="f", description="x" * 16_385)])),
        ("chat.tools[1].name", talk(tools=[tool, tool])),
        ("chat.tools", talk(tools=[pb.Tool(name=f"f{n}") for n in range(129)])),
        ("chat.tools", talk(tools=[pb.Tool(name=f"f{n}", description="x" * 16_000) for n in range(17)])),
        (f"{call}.name", called(name="")),
        (f"{call}.id", called(id="x" * 129)),
        ("messages[1].tool_calls", talk(pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall()] * 65))),
        ("messages[1].tool_calls", talk(pb.ChatMessage(role="user", tool_calls=[pb.ToolCall(name="f")]))),
        ("messages[1].tool_call_id", talk(pb.ChatMessage(role="user", content="x", tool_call_id="c"))),
        ("messages[1].tool_call_id", talk(pb.ChatMessage(role="tool", tool_call_id="\n"))),
        ("chat.forced_tool", talk(forced_tool=pb.ForcedTool())),
        ("chat.forced_tool.name", talk(tools=[tool], forced_tool=pb.ForcedTool(name="g"))),
        ("chat.forced_tool", constrained),
        ("chat.forced_tool", talk(open_, continue_final_message=True, **forced)),
        ("chat.forced_tool", talk(**forced)),  # the scripted engine keeps no schemas
        ("chat.continue_final_message", talk(continue_final_message=True)),
    ]


def bad_generations() -> list[tuple[str, pb.GenerationRequest]]:
    """Return each with the field that must be named."""
    found = [
        (f"sampling.{name}", sampled(**{name: value}))
        for name, values in {
            "temperature": [-0.1, 2.1, NAN, INFINITE],
            "top_p": [-0.1, 1.1, NAN],
            "top_k": [-2],
            "min_p": [-0.1, 1.1, NAN],
            "typical_p": [0, -0.1, 1.1, NAN],
            "repetition_penalty": [0, -1, 10.1, NAN, INFINITE],
            "frequency_penalty": [-2.1, 2.1, NAN],
            "presence_penalty": [-2.1, 2.1, -INFINITE],
            "seed": [-2, -(2**63)],
            "logit_bias": [{1: 100.5}, {1: -100.5}, {1: NAN}, dict.fromkeys(range(301), 1.0), {2**31: 1.0}],
        }.items()
        for value in values
    ]
    found += [
        (f"stopping.{name}", stopped(**{name: value}))
        for name, values in {
            "max_tokens": [0, -1, -(2**31)],
            "min_tokens": [-1, 513],
            "stop": [[""], ["x"] * 17, ["x" * 257]],
            "stop_token_ids": [[1] * 65, [2**31]],
        }.items()
        for value in values
    ]
    return [
        *found,
        ("stopping.min_tokens", stopped(min_tokens=9, max_tokens=8)),
        ("input", pb.GenerationRequest()),
        ("prompt", generation(prompt="")),
        ("prompt", generation(prompt="x" * (CONTEXT + 1))),
        ("prompt", generation(prompt="x" * (4 * 2**20 + 1))),
        ("token_ids", pb.GenerationRequest(tokens=pb.TokenInput())),
        ("token", pb.GenerationRequest(tokens=pb.TokenInput(token_ids=[2**32 - 1]))),
        ("messages", chat()),
        ("messages", chat(("user", ""))),
        ("messages[0].role", chat(("nobody", "x"))),
        ("messages", chat(*[("user", "x")] * 1025)),
        *bad_chats(),
        ("logprobs", generation(logprobs=pb.LogprobOptions(top=21))),
        ("priority", generation(priority=101)),
        ("priority", generation(priority=-101)),
        ("json_schema", generation(json_schema=" ")),
        ("regex", generation(regex="x" * (16 * 1024 + 1))),
    ]


def violations(error: grpc.aio.AioRpcError) -> list[str]:
    """Return the fields that a status names."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                bad = error_details_pb2.BadRequest()
                if detail.Is(bad.DESCRIPTOR):
                    detail.Unpack(bad)
                    return [violation.field for violation in bad.field_violations]
    return []


async def test_bad_input_through_grpc_is_refused_and_leaves_no_trace(pair: Pair) -> None:
    wrong: list[str] = []
    stub = pair.stubs.predictions

    async def predict(request: rpc.PredictRequest) -> object:
        return await stub.Predict(request).read()

    async def expect(call: Callable[[], Awaitable[object]], what: str, field: str) -> None:
        try:
            answer = await call()
        except grpc.aio.AioRpcError as error:
            named = violations(error)
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                wrong.append(f"{what}: {error.code()} {error.details()}")
            elif not any(field in name for name in named):
                wrong.append(f"{what}: {field} is not among {named}")
        else:
            wrong.append(f"{what}: taken as {str(answer)[:80]}")

    async with bystander(pair):
        for field, request in bad_generations():
            what = f"{field}: {str(request)[:60]}"
            detached = rpc.CreatePredictionRequest(model=MODEL, generation=request)
            await expect(lambda m=detached: stub.CreatePrediction(m), what, field)
            attached = rpc.PredictRequest(model=MODEL, generation=request)
            await expect(lambda m=attached: predict(m), what, field)
        creates: list[tuple[str, dict[str, Any]]] = [
            ("model", {"model": ""}),
            ("request_id", {"request_id": "x" * 129}),
            ("request_id", {"request_id": "\n"}),
            ("labels", {"labels": {str(n): "" for n in range(65)}}),
            ("labels", {"labels": {"x": "y" * 65 * 1024}}),
            ("cancel_after", {"cancel_after": {"seconds": 4}}),
            ("cancel_after", {"cancel_after": {"seconds": -1}}),
            ("cancel_after", {"cancel_after": {"seconds": 86_401}}),
            ("generation", {"generation": None}),
        ]
        for field, changes in creates:
            message = rpc.CreatePredictionRequest(**{"model": MODEL, "generation": generation(), **changes})
            where = "input" if field == "generation" else field
            await expect(lambda m=message: stub.CreatePrediction(m), f"{field}: {changes}"[:80], where)
        reads: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("id", lambda: stub.GetPrediction(rpc.GetPredictionRequest())),
            ("id", lambda: stub.CancelPrediction(rpc.CancelPredictionRequest())),
            ("page_size", lambda: stub.ListPredictions(rpc.ListPredictionsRequest(page_size=-1))),
            ("page_token", lambda: stub.ListPredictions(rpc.ListPredictionsRequest(page_token="x"))),
            (
                "after",
                lambda: stub.StreamPrediction(rpc.StreamPredictionRequest(id="x", after_sequence=-1)).read(),
            ),
        ]
        for field, call in reads:
            await expect(call, field, field)
    assert wrong == []


UNREADABLE = {
    "invalid UTF-8 in model": b"\x0a\x02\xff\xfe",
    "invalid UTF-8 in the prompt": b"\x12\x04\x0a\x02\xff\xfe",
    "shorter than announced": b"\x0a\x05ab",
    "garbage": b"\xff" * 20,
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
async def test_bytes_that_are_no_message_are_a_bad_request(pair: Pair, body: bytes) -> None:
    path = "/tailrace.v1.PredictionService/"
    before = await listed(pair)
    calls = (
        pair.stubs.channel.unary_unary(path + "CreatePrediction")(body),
        pair.stubs.channel.unary_stream(path + "Predict")(body).read(),
    )
    for call in calls:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violations(raised.value) == ["request"]
    assert [p.id for p in await listed(pair)] == [p.id for p in before]


async def test_an_unknown_model_is_not_found(pair: Pair) -> None:
    before = await listed(pair)
    request = rpc.CreatePredictionRequest(model="local/other", generation=generation())
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await pair.stubs.predictions.CreatePrediction(request)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert "local/other" in (raised.value.details() or "")
    assert [p.id for p in await listed(pair)] == [p.id for p in before]


def test_the_table_covers_every_numeric_field() -> None:
    """A numeric field that is added to the contract must get its rows here."""
    tried = {field.split(".")[-1] for field, _ in bad_generations()}
    numeric = {
        f.name
        for message in (pb.Sampling, pb.Stopping)
        for f in message.DESCRIPTOR.fields
        if f.cpp_type not in (f.CPPTYPE_STRING, f.CPPTYPE_BOOL)
    }
    assert numeric - tried == set()
