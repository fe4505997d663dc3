"""Tools and unfinished messages on the wire of the OpenAI and Anthropic APIs, with both processes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.dialects import CHAT, MESSAGES, RESPONSES, Dialect, name_of, read_stream
from tests.support.outage import read_over_a_death
from tests.support.pair import LIMIT_S, Pair, Reading, numbered, running_pair, script

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "get_weather", "description": "Tell the weather.", "parameters": SCHEMA}
TOOLS: dict[str, list[dict[str, object]]] = {
    "chat": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "get_weather", "description": "Tell the weather.", "input_schema": SCHEMA}],
}
ONE_CALL: dict[str, dict[str, object]] = {
    "chat": {"parallel_tool_calls": False},
    "responses": {"parallel_tool_calls": False},
    "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
}
WITH_TOOLS = (CHAT, RESPONSES, MESSAGES)
ENDS = {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}
each = pytest.mark.parametrize("dialect", WITH_TOOLS, ids=name_of)


def block(**arguments: object) -> str:
    call = json.dumps({"name": "get_weather", "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def plays(*texts: str, **fields: object) -> str:
    return script(pieces=[piece for text in texts for piece in text], **fields)


@pytest.fixture(scope="module")
async def without(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """A pair whose model knows no tools, and cannot force any."""
    service = {"engine_options": json.dumps({"tool_format": ""})}
    async with running_pair(tmp_path_factory.mktemp("without"), service) as running:
        yield running


def calls_of(dialect: Dialect, body: dict[str, Any]) -> list[tuple[str, str, Any]]:
    """Return id, name and arguments of each call in a whole answer."""
    match dialect.name:
        case "chat":
            calls = body["choices"][0]["message"].get("tool_calls", ())
            given = [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls]
        case "responses":
            items = [item for item in body["output"] if item["type"] == "function_call"]
            given = [(item["call_id"], item["name"], item["arguments"]) for item in items]
        case _:
            blocks = [b for b in body["content"] if b["type"] == "tool_use"]
            return [(b["id"], b["name"], b["input"]) for b in blocks]
    return [(call_id, name, json.loads(arguments)) for call_id, name, arguments in given]


def streamed_calls(dialect: Dialect, reading: Reading) -> list[list[str]]:
    """Return id, name and arguments of each call of a stream."""
    calls: list[list[str]] = []
    for event in reading.events:
        data = json.loads(event.data) if event.data != "[DONE]" else {}
        match dialect.name:
            case "chat":
                for choice in data.get("choices", ()):
                    for call in choice["delta"].get("tool_calls", ()):
                        if call["index"] == len(calls):
                            calls.append([call["id"], call["function"]["name"], ""])
                        calls[call["index"]][2] += call["function"]["arguments"]
            case "responses":
                if data["type"] == "response.output_item.added" and data["item"]["type"] == "function_call":
                    calls.append([data["item"]["call_id"], data["item"]["name"], ""])
                if data["type"] == "response.function_call_arguments.delta":
                    calls[-1][2] += data["delta"]
            case _:
                start = data.get("content_block", {})
                if start.get("type") == "tool_use":
                    calls.append([start["id"], start["name"], ""])
                more = data.get("delta", {}).get("partial_json", "")
                if more:
                    calls[-1][2] += more
    return calls


async def post(pair: Pair, dialect: Dialect, prompt: str, **fields: object) -> httpx.Response:
    body = dialect.body(prompt, **{"tools": TOOLS[dialect.name], **fields})
    return await pair.http.post(pair.edge.url + dialect.path, json=body)


async def newest(pair: Pair) -> pb.Prediction:
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    found = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=page.predictions[0].id))
    return found


@each
async def test_b161_b163_every_call_has_its_number_and_id(pair: Pair, dialect: Dialect) -> None:
    prompt = plays("So:\n", block(city="Ulm"), block(), "\nand\n", block(city="Bonn"), delay_ms=1)
    with anyio.fail_after(LIMIT_S):
        reading = await read_stream(pair.http, pair.edge.url, dialect, prompt, tools=TOOLS[dialect.name])
    calls = streamed_calls(dialect, reading)
    assert [(name, json.loads(arguments)) for _, name, arguments in calls] == [
        ("get_weather", {"city": "Ulm"}),
        ("get_weather", {}),
        ("get_weather", {"city": "Bonn"}),
    ]
    identity = reading.headers["x-request-id"]
    assert [call_id.split("_", 1)[1] for call_id, _, _ in calls] == [f"{identity}_{n}" for n in range(3)]
    assert ENDS[dialect.name].encode() in reading.raw
    body = (await post(pair, dialect, prompt)).json()
    assert [arguments for _, _, arguments in calls_of(dialect, body)] == [
        {"city": "Ulm"},
        {},
        {"city": "Bonn"},
    ]
    record = await newest(pair)
    assert "".join(record.output) == f"So:\n{block(city='Ulm')}{block()}\nand\n{block(city='Bonn')}"


async def test_several_choices_with_calls_and_usage(pair: Pair) -> None:
    prompt = plays(block(city="Ulm"), block(), delay_ms=1)
    reading = await read_stream(
        pair.http,
        pair.edge.url,
        CHAT,
        prompt,
        tools=TOOLS["chat"],
        n=2,
        stream_options={"include_usage": True},
    )
    chunks = [json.loads(event.data) for event in reading.events if event.data != "[DONE]"]
    begun = [
        (choice["index"], call["index"], call["id"])
        for chunk in chunks
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert sorted(entry[:2] for entry in begun) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({call_id for _, _, call_id in begun}) == 4
    finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [finish for finish in finishes if finish] == ["tool_calls"] * 2
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0


@each
async def test_a_model_without_tools_refuses_them_by_name(without: Pair, dialect: Dialect) -> None:
    answer = await post(without, dialect, "x")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error.get("param") == "tools" or error["message"].startswith("tools: ")
    assert (await post(without, dialect, numbered(2)[0], tools=[])).status_code == 200


async def test_a_model_without_tools_refuses_earlier_calls_by_name(without: Pair) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
    ]
    answer = await post(without, CHAT, "", messages=messages, tools=[])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


@each
async def test_what_the_service_refuses_has_this_api_s_name(pair: Pair, dialect: Dialect) -> None:
    (tool,) = TOOLS[dialect.name]
    place = {
        "chat": "tools.[0].function.description",
        "responses": "tools.[0].description",
        "messages": "tools.0.description",
    }
    if dialect is CHAT:
        tool = tool | {"function": FUNCTION | {"description": "x" * 20_000}}
    else:
        tool = tool | {"description": "x" * 20_000}
    answer = await post(pair, dialect, "x", tools=[tool])
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert place[dialect.name] in (error.get("param"), error["message"].partition(":")[0])


async def test_an_unfinished_message_goes_on_where_it_breaks_off(pair: Pair) -> None:
    prompt, text = numbered(6)
    begun = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text[:5]}]
    for dialect, fields in ((CHAT, {"continue_final_message": True}), (MESSAGES, {})):
        given = dialect.body("", messages=begun, **fields)
        answer = await pair.http.post(pair.edge.url + dialect.path, json=given)
        assert answer.status_code == 200, answer.text
        assert dialect.whole(answer.json()) == text[5:]
        reading = await read_stream(pair.http, pair.edge.url, dialect, "", messages=begun, **fields)
        assert dialect.text(reading) == text[5:]
    counted = MESSAGES.body("", messages=begun)
    count = await pair.http.post(f"{pair.edge.url}/v1/messages/count_tokens", json=counted)
    assert count.json()["input_tokens"] == (await newest(pair)).usage.input_tokens


async def test_items_of_earlier_responses_go_by_their_ids(pair: Pair) -> None:
    prompt = plays("So:\n", block(city="Ulm"), block(city="Bonn"), "\nand\n")
    first = (await post(pair, RESPONSES, prompt)).json()
    said, ulm, bonn, then = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "sun"}
    items = [{"role": "user", "content": numbered(2)[0]}, said, ulm, bonn, result, then]
    answer = await post(pair, RESPONSES, "", input=items)
    assert answer.status_code == 200, answer.text
    turns = (await newest(pair)).request.chat.messages
    assert [(turn.role, turn.content) for turn in turns[1:]] == [
        ("assistant", "So:"),
        ("tool", "sun"),
        ("assistant", "and\n"),
    ]
    assert [call.arguments for call in turns[1].tool_calls] == ['{"city": "Ulm"}', '{"city": "Bonn"}']
    for bad in ("nope", f"msg_{'a' * 26}", f"{said['id']}_9", bonn["id"].replace("fc_", "msg_")):
        answer = await post(pair, RESPONSES, "", input=[{"type": "item_reference", "id": bad}])
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


async def test_a_reference_to_an_answer_with_one_call_reads_one_call(pair: Pair) -> None:
    prompt = plays(block(city="Ulm"), block(city="Bonn"))
    first = (await post(pair, RESPONSES, prompt, parallel_tool_calls=False)).json()
    (call,) = first["output"]
    assert call["name"] == "get_weather"
    for identity, status in ((call["id"], 200), (call["id"].removesuffix("0") + "1", 400)):
        items = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": identity}]
        assert (await post(pair, RESPONSES, "", input=items)).status_code == status


async def test_a_count_with_tools_is_what_is_fed(pair: Pair) -> None:
    prompt, _ = numbered(2)
    answer = await post(pair, MESSAGES, prompt)
    body = MESSAGES.body(prompt, tools=TOOLS["messages"])
    counted = await pair.http.post(f"{pair.edge.url}/v1/messages/count_tokens", json=body)
    assert counted.json()["input_tokens"] == answer.json()["usage"]["input_tokens"]


async def test_calls_go_on_over_the_death_of_the_service(tmp_path: Path) -> None:
    prompt = plays(block(city="Ulm and around it"), delay_ms=20)
    async with running_pair(tmp_path) as pair:
        readings = await read_over_a_death(
            pair, WITH_TOOLS, prompt, streamed_calls, lambda dialect: {"tools": TOOLS[dialect.name]}
        )
    for dialect in WITH_TOOLS:
        ((_, name, arguments),) = streamed_calls(dialect, readings[dialect.name])
        assert (name, json.loads(arguments)) == ("get_weather", {"city": "Ulm and around it"})
