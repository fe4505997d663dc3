"""Tool calls as every official client reads them, whichever of the APIs it speaks."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.conformance.llm.programs import Program, Report
from tests.support.pair import LIMIT_S, Pair, script

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": "get_weather", "description": "Tell the weather.", "parameters": SCHEMA},
    {"name": "get_time", "description": "Tell the time.", "parameters": {"type": "object", "properties": {}}},
]
MESSAGE_ENDS = ("tool_use", "max_tokens")
ENDS = ("tool_calls", "length")
CLIENTS = [
    ("python", "chat", ("stream", "helper", "whole"), ENDS),
    ("python", "responses", ("stream", "whole"), ("completed", "incomplete")),
    ("python", "langchain", ("stream", "whole"), ENDS),
    ("python", "messages", ("helper", "whole"), MESSAGE_ENDS),
    ("old_python", "messages", ("helper", "whole"), MESSAGE_ENDS),
    ("js", "chat", ("helper", "whole"), ENDS),
    ("js", "messages", ("helper", "whole"), MESSAGE_ENDS),
    ("js", "ai-compatible", ("stream", "whole"), ("tool-calls", "length")),
    ("js", "ai-openai", ("stream", "whole"), ("tool-calls", "length")),
    ("js", "ai-anthropic", ("stream", "whole"), ("tool-calls", "length")),
]
CASES = [
    pytest.param(
        program,
        client,
        call,
        ends,
        id=f"{program}-{client}-{call}",
        marks=[pytest.mark.node] if program == "js" else [],
    )
    for program, client, calls, ends in CLIENTS
    for call in calls
]
EACH = pytest.mark.parametrize(("program", "client", "call", "ends"), CASES)
TAKES_ONE_CALL = pytest.mark.parametrize(
    ("program", "client", "call", "ends"),
    [case for case in CASES if case.values[1] != "ai-compatible"],  # this provider has no option for it
)


def block(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def in_pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def plays(text: str, **fields: object) -> str:
    return script(pieces=in_pieces(text), **fields)


ULM, BONN, NOW = block("get_weather", city="Ulm"), block("get_weather", city="Bonn 🙂"), block("get_time")
CALLS: dict[str, tuple[str, Any]] = {
    ULM: ("get_weather", {"city": "Ulm"}),
    BONN: ("get_weather", {"city": "Bonn 🙂"}),
    NOW: ("get_time", {}),
}


@pytest.fixture
def ask(
    request: pytest.FixtureRequest, program: str, client: str, call: str, ends: tuple[str, str], pair: Pair
) -> Any:
    asked: Program = request.getfixturevalue(program)

    async def done(text: str, **more: object) -> Report:
        with anyio.fail_after(LIMIT_S):
            return await asked.ask(client, call, pair.edge.url, text, **{"tools": TOOLS, **more})

    return done


def check(report: Report, blocks: list[str], finish: str) -> None:
    assert report.error is None, report.error
    assert [(name, json.loads(arguments)) for _, name, arguments in report.calls] == [
        CALLS[b] for b in blocks
    ]
    assert len({call_id for call_id, _, _ in report.calls}) == len(blocks)
    assert all(call_id and len(call_id) <= 64 for call_id, _, _ in report.calls)
    assert report.finish == finish


@EACH
@pytest.mark.parametrize("blocks", [[ULM], [ULM, BONN], [NOW, ULM, NOW]], ids=["one", "two", "three"])
async def test_b161_b163_calls_are_told_apart(ask: Any, ends: tuple[str, str], blocks: list[str]) -> None:
    report = await ask(plays("\n".join(blocks)))
    check(report, blocks, ends[0])
    assert not report.text
    assert report.kinds in (None, ["call"] * len(blocks))


@EACH
async def test_b163_text_between_calls(ask: Any, ends: tuple[str, str]) -> None:
    report = await ask(plays(f"{ULM}\nAnd the time: \n{NOW}"))
    check(report, [ULM, NOW], ends[0])
    assert report.text == "And the time:"
    assert report.kinds in (None, ["call", "text", "call"])


@EACH
async def test_text_before_a_call(ask: Any, ends: tuple[str, str]) -> None:
    report = await ask(plays(f"Let me look.\n{ULM}"))
    check(report, [ULM], ends[0])
    assert report.text == "Let me look."


@EACH
async def test_a_call_that_is_answered(ask: Any, ends: tuple[str, str], pair: Pair) -> None:
    report = await ask(plays(f"Let me look.\n{ULM}\n{NOW}"), result=plays("Sunny at noon."))
    check(report, [ULM, NOW], ends[0])
    assert report.then == "Sunny at noon."
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    found = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=page.predictions[0].id))
    user, said, *results = found.request.chat.messages
    assert (user.role, said.role, said.content) == ("user", "assistant", "Let me look.")
    assert [(c.id, c.name, json.loads(c.arguments)) for c in said.tool_calls] == [
        (call_id, name, json.loads(arguments)) for call_id, name, arguments in report.calls
    ]
    assert [(turn.role, turn.tool_call_id) for turn in results] == [("tool", c.id) for c in said.tool_calls]
    assert [tool.name for tool in found.request.chat.tools] == ["get_weather", "get_time"]


@EACH
@pytest.mark.parametrize("choice", ["required", "get_weather"])
async def test_a_forced_call(ask: Any, ends: tuple[str, str], pair: Pair, choice: str) -> None:
    report = await ask(plays('{"name": "get_weather", "arguments": {"city": "Ulm"}}'), choice=choice)
    check(report, [ULM], ends[0])
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    found = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=page.predictions[0].id))
    assert found.request.chat.forced_tool.name == ("" if choice == "required" else choice)


@TAKES_ONE_CALL
async def test_no_more_than_one_call(ask: Any, ends: tuple[str, str]) -> None:
    report = await ask(plays(f"{ULM}{BONN} so"), parallel=False)
    check(report, [ULM], ends[0])
    assert not report.text


@EACH
async def test_no_tools_are_told_when_none_may_be_called(ask: Any, client: str, pair: Pair) -> None:
    report = await ask(plays("Hi."), choice="none")
    assert (report.error, report.text, report.calls) == (None, "Hi.", [])
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    found = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=page.predictions[0].id))
    assert not found.request.chat.tools


@EACH
async def test_a_limit_in_mid_call(ask: Any, client: str, call: str, ends: tuple[str, str]) -> None:
    limits = {"responses": "max_output_tokens", "langchain": "max_tokens"}
    name = "maxOutputTokens" if client.startswith("ai-") else limits.get(client, "max_tokens")
    report = await ask(plays(ULM), options={name: 12})
    if report.error is not None:  # this helper refuses every answer that is cut
        assert (client, call) == ("chat", "helper") and "length" in report.error["text"].lower()
        return
    assert report.finish == ends[1]
    assert "<tool_call>" not in (report.text or "")


@EACH
async def test_a_failure_in_mid_call_is_an_error(ask: Any) -> None:
    report = await ask(plays(ULM, fail_after=12, fail_message="out of luck"))
    assert report.error is not None
