"""Tool calls in the streams and bodies of the OpenAI and Anthropic APIs: order, ids, ends."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.anthropic.messages import MessageStream, whole_body
from edge.http.sse_response import SseRendering
from edge.openai.chat import ChatStream, chat_body
from edge.openai.response_bodies import response_body
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import read_response
from edge.protocol.sse import SseParser
from edge.protocol.tool_calls import ToolCallReader
from edge.upstream.answers import Answer
from edge.upstream.events import Accepted, Completed, FinishReason
from edge.upstream.port import Choice
from edge.upstream.records import Tool
from edge.upstream.tools import ToolUse, takes_tools
from tests.support.answers import ID, LLM_WITH_TOOLS, NOW, completed, run

USE = ToolUse((Tool("f"), Tool("g")))
FIRST = Accepted(1, "0" + ID[1:], NOW)
RESPONSE = read_response({"model": "m", "input": "x"})


def block(name: str, arguments: str) -> str:
    return f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


TWO = "Let me see." + block("f", '{"a": 1}') + block("g", "{}") + "\nDone."
CUT = completed(reason=FinishReason.LENGTH)


def said(rendering: SseRendering[Choice], events: list[Choice]) -> list[Any]:
    found = SseParser().feed(b"".join(map(rendering.render, events)))
    return [json.loads(event.data) for event in found if event.data != "[DONE]"]


def answer(text: str, end: Completed | None = None) -> Answer:
    made = Answer()
    for choice in run(text, end=end):
        made.take(choice.event)
    return made


def chat_message(chunks: list[Any], choice: int = 0) -> tuple[dict[str, Any], str]:
    """Put a choice together as the SDKs do; return its message and finish."""
    message: dict[str, Any] = {"role": None, "content": None}
    finish = ""
    for chunk in chunks:
        for entry in chunk["choices"]:
            if entry["index"] != choice:
                continue
            finish = entry["finish_reason"] or finish
            delta = entry["delta"]
            message["role"] = delta.get("role", message["role"])
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", ()):
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    assert call.keys() == {"index", "id", "type", "function"}
                    assert call["function"]["arguments"] == ""
                    calls.append({key: value for key, value in call.items() if key != "index"})
                else:
                    assert call["index"] == len(calls) - 1 and call.keys() == {"index", "function"}
                    assert call["function"].keys() == {"arguments"}
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return message, finish


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def chat_stream(*, usage: bool = False, choices: int = 1, use: ToolUse = USE) -> ChatStream:
    return ChatStream(LLM_WITH_TOOLS, choices, include_usage=usage, logprobs=False, tools=use)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_two_calls_of_a_chat(size: int) -> None:
    chunks = said(chat_stream(), run(*pieces_of(TWO, size)))
    message, finish = chat_message(chunks)
    ids = [f"call_{FIRST.prediction_id}_{index}" for index in (0, 1)]
    calls = [
        {"id": ids[0], "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        {"id": ids[1], "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    expected = {"role": "assistant", "content": "Let me see.\nDone.", "tool_calls": calls}
    assert (message, finish) == (expected, "tool_calls")
    whole: Any = chat_body((FIRST,), [answer(TWO)], LLM_WITH_TOOLS, logprobs=False, tools=USE)
    assert whole["choices"][0]["message"] == {**expected, "refusal": None}
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_alone_has_no_content() -> None:
    whole: Any = chat_body((FIRST,), [answer(block("f", "{}"))], LLM_WITH_TOOLS, logprobs=False, tools=USE)
    assert whole["choices"][0]["message"]["content"] is None
    message, _ = chat_message(said(chat_stream(), run(block("f", "{}"))))
    assert message["content"] is None


@pytest.mark.parametrize("text", ["", "Hi ", "a <tool_call> b"])
def test_an_answer_without_calls_is_as_it_ever_was(text: str) -> None:
    message, finish = chat_message(said(chat_stream(), run(text)))
    assert (message["content"] or "", finish) == (text, "stop")
    whole: Any = chat_body((FIRST,), [answer(text)], LLM_WITH_TOOLS, logprobs=False, tools=USE)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text, "refusal": None}


def test_choices_have_calls_of_their_own() -> None:
    one, two = run(block("f", "{}"), index=0), run(block("g", "{}") + block("f", "{}"), index=1)
    mixed = [one[0], two[0], two[1], two[2], one[1], one[2], two[3], one[3]]
    chunks = said(chat_stream(choices=2, usage=True), mixed)
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks[:2]] == ["assistant"] * 2
    calls = [chat_message(chunks, choice)[0]["tool_calls"] for choice in (0, 1)]
    assert [[call["function"]["name"] for call in made] for made in calls] == [["f"], ["g", "f"]]
    assert calls[1][1]["id"] == f"call_1{ID[1:]}_1"
    assert chunks[-1]["usage"]["completion_tokens"] == 6


def message_stream(use: ToolUse = USE) -> MessageStream:
    return MessageStream("m", 100, use.reader(LLM_WITH_TOOLS))


def message_blocks(events: list[Any]) -> list[dict[str, Any]]:
    """Put the blocks together as the SDKs do."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks) and not is_open
                is_open = True
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1 and is_open
                delta = event["delta"]
                blocks[-1]["text" if delta["type"] == "text_delta" else "json"] += delta.get(
                    "text", delta.get("partial_json")
                )
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1 and is_open
                is_open = False
    assert not is_open
    return blocks


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_blocks_of_a_message(size: int) -> None:
    events = said(message_stream(), run(*pieces_of(TWO, size)))
    ids = [f"toolu_{FIRST.prediction_id}_{index}" for index in (0, 1)]
    assert message_blocks(events) == [
        {"type": "text", "text": "Let me see.", "json": ""},
        {"type": "tool_use", "id": ids[0], "name": "f", "input": {}, "json": '{"a": 1}'},
        {"type": "tool_use", "id": ids[1], "name": "g", "input": {}, "json": "{}"},
        {"type": "text", "text": "Done.", "json": ""},
    ]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    whole: Any = whole_body(FIRST, answer(TWO), "m", 100, USE.reader(LLM_WITH_TOOLS))
    assert whole["content"] == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": ids[0], "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": ids[1], "name": "g", "input": {}},
        {"type": "text", "text": "Done."},
    ]
    assert whole["stop_reason"] == "tool_use"


def response_stream(use: ToolUse = USE) -> ResponseStream:
    return ResponseStream("m", RESPONSE, use.reader(LLM_WITH_TOOLS))


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_items_of_a_response(size: int) -> None:
    events = said(response_stream(), run(*pieces_of(TWO, size)))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[Any] = []
    arguments: dict[str, str] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
                items.append(event["item"])
            case "response.function_call_arguments.delta":
                assert (event["item_id"], event["output_index"]) == (items[-1]["id"], len(items) - 1)
                arguments[event["item_id"]] = arguments.get(event["item_id"], "") + event["delta"]
            case "response.function_call_arguments.done":
                assert event["arguments"] == arguments[event["item_id"]]
            case "response.output_text.delta" | "response.content_part.done":
                assert (event["item_id"], event["output_index"]) == (items[-1]["id"], len(items) - 1)
            case "response.output_item.done":
                items[-1] = event["item"]
                assert event["item"]["status"] == "completed"
    assert [item["type"] for item in items] == ["message", "function_call", "function_call", "message"]
    assert len({item["id"] for item in items}) == 4
    assert (items[1]["name"], items[1]["arguments"]) == ("f", '{"a": 1}')
    assert items[1]["call_id"] == f"call_{FIRST.prediction_id}_0"
    end = events[-1]
    assert (end["type"], end["response"]["output"]) == ("response.completed", items)


@given(st.integers(0, len(TWO)), st.integers(1, 20), st.booleans())
def test_whole_responses_are_the_ends_of_their_streams(length: int, size: int, cut: bool) -> None:
    text, end = TWO[:length], CUT if cut else completed()
    events = said(response_stream(), run(*pieces_of(text, size), end=end))
    whole = response_body(FIRST, answer(text, end), "m", RESPONSE, USE.reader(LLM_WITH_TOOLS))
    assert events[-1]["response"] == whole


def test_a_cut_call_ends_as_the_limit() -> None:
    text = block("f", '{"a": [1')[: -len("}\n</tool_call>")]
    message, finish = chat_message(said(chat_stream(), run(text, end=CUT)))
    assert (message["tool_calls"][0]["function"]["arguments"], finish) == ('{"a": [1', "length")
    events = said(message_stream(), run(text, end=CUT))
    assert message_blocks(events)[0]["json"] == '{"a": [1'
    assert events[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"
    whole: Any = whole_body(FIRST, answer(text, CUT), "m", 100, USE.reader(LLM_WITH_TOOLS))
    assert whole["content"][0]["input"] == {"INVALID_JSON": '{"a": [1'}
    response = said(response_stream(), run(text, end=CUT))[-1]["response"]
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")


@pytest.mark.parametrize("end", [completed(), CUT])
def test_an_answer_without_parallel_calls_ends_with_its_first(end: Completed) -> None:
    use = ToolUse(USE.tools, is_parallel=False)
    message, finish = chat_message(said(chat_stream(use=use), run(TWO, end=end)))
    assert ([call["function"]["name"] for call in message["tool_calls"]], finish) == (["f"], "tool_calls")
    assert message["content"] == "Let me see."
    events = said(message_stream(use), run(TWO, end=end))
    assert events[-2]["delta"]["stop_reason"] == "tool_use" and len(message_blocks(events)) == 2
    last = said(response_stream(use), run(TWO, end=end))[-1]
    assert last["type"] == "response.completed" and len(last["response"]["output"]) == 2


def test_a_forced_call_is_the_whole_output() -> None:
    use = ToolUse(USE.tools, forced="f")
    text = '{"name": "f", "arguments": {"a": 1}}'
    message, finish = chat_message(said(chat_stream(use=use), run(*text)))
    assert (message["tool_calls"][0]["function"]["arguments"], finish) == ('{"a": 1}', "tool_calls")


def test_nothing_is_said_while_it_may_still_be_a_call() -> None:
    for stream in (chat_stream(), message_stream(), response_stream()):
        first, started, *rest = run("\n<tool_call>", '{"name": "f",', ' "arguments": {}}')
        assert [stream.render(event) for event in (first, started, rest[0])] == [b"", b"", b""]
        assert b'"f"' in stream.render(rest[1])


def test_a_stop_string_goes_before_a_call() -> None:
    events = said(message_stream(), run(block("f", "{}"), end=completed(stop="END")))
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


def test_every_form_has_its_reader() -> None:
    for form in ("hermes", "llama3", "mistral"):
        model = replace(LLM_WITH_TOOLS, tool_format=form)
        assert takes_tools(model) and isinstance(USE.reader(model), ToolCallReader)
    for form in ("", "forced", "unheard-of"):
        assert not takes_tools(replace(LLM_WITH_TOOLS, tool_format=form))
