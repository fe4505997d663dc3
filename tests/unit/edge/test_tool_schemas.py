"""Tools, calls and unfinished messages in the bodies of the OpenAI and Anthropic APIs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edge.anthropic import errors as anthropic_errors
from edge.anthropic.errors import RequestRefused as MessageRefused
from edge.anthropic.schemas import CountBody, MessageBody, chat_input, message_generation
from edge.anthropic.schemas import read_body as read_message_body
from edge.openai import chat_schema, responses_schema
from edge.openai import errors as openai_errors
from edge.openai.chat_schema import chat_generations, read_chat
from edge.openai.errors import RequestRefused
from edge.openai.responses_schema import read_response, response_generation
from edge.upstream.errors import Reason, UpstreamError, Violation
from edge.upstream.records import ChatInput, ChatMessage, Tool, ToolCall
from edge.upstream.tools import object_of, object_text

USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Tells.", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
OTHER_TOOL = {"type": "function", "function": {"name": "clock"}}
ITEM_TOOL = {"type": "function", **FUNCTION}
MESSAGE_TOOL = {"name": "weather", "description": "Tells.", "input_schema": SCHEMA}
CHOSEN = {"type": "function", "function": {"name": "weather"}}
TOOL = Tool("weather", "Tells.", json.dumps(SCHEMA, separators=(",", ":")))
CALLED = {"name": "weather", "arguments": '{"city": "Ulm"}'}
CALL = {"id": "c1", "type": "function", "function": CALLED}
TURNS = (
    ChatMessage("user", "hello"),
    ChatMessage("assistant", "", (ToolCall("c1", "weather", '{"city": "Ulm"}'),)),
    ChatMessage("tool", "sun", tool_call_id="c1"),
)


def chat(**fields: object) -> ChatInput:
    body = read_chat({"model": "m", "messages": [USER], **fields})
    (made,) = chat_generations(body, chat_template=True, default_tokens=9, tools=True)
    assert isinstance(made.input, ChatInput)
    return made.input


def response(**fields: object) -> ChatInput:
    body = read_response({"model": "m", "input": "hello", **fields})
    made = response_generation(body, chat_template=True, default_tokens=9, tools=True).input
    assert isinstance(made, ChatInput)
    return made


def message(**fields: object) -> ChatInput:
    given = {"model": "m", "messages": [USER], "max_tokens": 9, **fields}
    made = message_generation(read_message_body(MessageBody, given), chat_template=True, tools=True).input
    del given["max_tokens"]
    counted = chat_input(read_message_body(CountBody, given), chat_template=True, tools=True)
    assert made == counted, "what is counted is what is fed"
    return counted


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        (None, None),
        ("auto", None),
        ("required", ""),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
    ],
)
def test_tools_of_a_chat(choice: object, forced: str | None) -> None:
    given = chat(tools=[CHAT_TOOL, OTHER_TOOL], tool_choice=choice)
    assert (given.tools, given.forced_tool) == ((TOOL, Tool("clock")), forced)
    if isinstance(choice, dict):
        choice = {"type": "function", "name": "weather"}
    flat = response(tools=[ITEM_TOOL], tool_choice=choice)
    assert (flat.tools, flat.forced_tool) == ((TOOL,), forced)


@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        (None, None),
        ({"type": "auto"}, None),
        ({"type": "any"}, ""),
        ({"type": "tool", "name": "weather"}, "weather"),
    ],
)
def test_tools_of_a_message(choice: object, forced: str | None) -> None:
    given = message(tools=[MESSAGE_TOOL], tool_choice=choice)
    assert (given.tools, given.forced_tool) == ((TOOL,), forced)


def test_tools_that_must_not_be_called_are_not_told() -> None:
    assert chat(tools=[CHAT_TOOL], tool_choice="none") == chat() == chat(tools=[], tool_choice="auto")
    assert response(tools=[ITEM_TOOL], tool_choice="none") == response()
    assert message(tools=[MESSAGE_TOOL], tool_choice={"type": "none"}) == message() == message(tools=[])
    assert chat(tools=[CHAT_TOOL], tool_choice="none", logprobs=True) == chat()


def test_one_call_at_a_time_is_asked_in_each_api_s_words() -> None:
    for fields, parallel in ((None, True), (True, True), (False, False)):
        body = {"model": "m", "messages": [USER], "tools": [CHAT_TOOL], "parallel_tool_calls": fields}
        use = read_chat(body).tool_use
        flat = read_response(
            {"model": "m", "input": "x", "tools": [ITEM_TOOL], "parallel_tool_calls": fields}
        ).tool_use
        choice = {"type": "auto", "disable_parallel_tool_use": None if fields is None else not fields}
        asked = {"model": "m", "messages": [USER], "tools": [MESSAGE_TOOL], "tool_choice": choice}
        told = read_message_body(CountBody, asked).tool_use
        assert use is not None and flat is not None and told is not None
        assert use.is_parallel == flat.is_parallel == told.is_parallel == parallel


def test_calls_and_results_in_a_conversation() -> None:
    turns = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    turns.append({"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sun"}]})
    assert chat(messages=turns).messages == TURNS
    items = [
        USER,
        {"type": "function_call", "id": "fc", "call_id": "c1", **CALLED},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    assert response(input=items).messages == TURNS
    blocks = [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Ulm"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sun"}]},
    ]
    first, call, result = message(messages=blocks).messages
    assert (first, result) == (TURNS[0], TURNS[2])
    assert call == ChatMessage("assistant", "", (ToolCall("c1", "weather", '{"city":"Ulm"}'),))


def test_parallel_calls_are_one_turn() -> None:
    call = {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": ""}
    said = {"role": "assistant", "content": "so"}
    given = response(input=[USER, said, call, call | {"call_id": "c3"}, call | {"type": "message", **USER}])
    calls = (ToolCall("c2", "clock", ""), ToolCall("c3", "clock", ""))
    assert given.messages[1] == ChatMessage("assistant", "so", calls)
    use = {"type": "tool_use", "id": "c2", "name": "clock", "input": {}}
    blocks = [{"type": "text", "text": "so"}, use, use | {"id": "c3"}]
    results = [
        {"type": "tool_result", "tool_use_id": "c2"},
        {
            "type": "tool_result",
            "tool_use_id": "c3",
            "content": [{"type": "text", "text": "no"}],
            "is_error": True,
        },
        {"type": "text", "text": "and?"},
    ]
    turns = message(
        messages=[USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]
    ).messages
    assert turns[1:] == (
        ChatMessage("assistant", "so", (ToolCall("c2", "clock", "{}"), ToolCall("c3", "clock", "{}"))),
        ChatMessage("tool", "", tool_call_id="c2"),
        ChatMessage("tool", "Error: no", tool_call_id="c3"),
        ChatMessage("user", "and?"),
    )


def test_an_unfinished_message_is_continued() -> None:
    begun = [USER, {"role": "assistant", "content": "It is "}]
    assert message(messages=begun).continue_final_message
    assert not message().continue_final_message
    for more in ({}, {"add_generation_prompt": False}):
        assert chat(messages=begun, continue_final_message=True, **more).continue_final_message
    assert not chat(messages=begun).continue_final_message
    assert not chat(add_generation_prompt=True, continue_final_message=False).continue_final_message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools.[0].function"),
        ({"tools": [{"type": "web_search", "function": FUNCTION}]}, "tools.[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.[0].function.name"),
        ({"tools": [CHAT_TOOL, CHAT_TOOL]}, "tools.[1].function.name"),
        ({"tools": [CHAT_TOOL] * 129}, "tools"),
        ({"tools": {}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": CHOSEN | {"function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [CHAT_TOOL], "logprobs": True}, "logprobs"),
        ({"tools": [CHAT_TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [FUNCTION]}, "functions"),
        ({"function_call": {"name": "weather"}}, "function_call"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{}]}]}, "messages.[1].tool_calls.[0].id"),
        ({"messages": [USER, {"role": "assistant", "function_call": {}, "tool_calls": [CALL | {"id": "é"}]}]},
         "messages.[1].tool_calls.[0].id"),
        ({"messages": [{"role": "assistant", "function_call": {"a": 1}}]}, "messages.[0].function_call"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}], "continue_final_message": True},
         "continue_final_message"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}], "continue_final_message": True,
          "tools": [CHAT_TOOL], "tool_choice": "required"}, "continue_final_message"),
    ],
)  # fmt: skip
def test_refusals_of_a_chat_name_their_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        chat(**fields)
    assert caught.value.param == param and caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_preview"}]}, "tools.[0].type"),
        ({"tools": [ITEM_TOOL, ITEM_TOOL]}, "tools.[1].name"),
        ({"tools": [ITEM_TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tools": [ITEM_TOOL], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": [{"type": "reasoning", "id": "x"}]}, "input"),
        ({"tools": [ITEM_TOOL], "top_logprobs": 2}, "top_logprobs"),
        ({"tools": [ITEM_TOOL], "include": ["message.output_text.logprobs"]}, "include"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input.call_id"),
        ({"input": [USER] * 1025}, "input"),
        ({"input": [{"role": "user", "content": ""}]}, "input"),
    ],
)
def test_refusals_of_a_response_name_their_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        response(**fields)
    assert caught.value.param == param and caught.value.message


USE_BLOCK = {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
RESULT_BLOCK = {"type": "tool_result", "tool_use_id": "c1"}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"name": "weather"}]}, "tools.0.input_schema: Field required"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools.0.type: tools of type 'web"),
        ({"tools": [MESSAGE_TOOL, MESSAGE_TOOL]}, "tools.1.name: "),
        ({"tools": [{**MESSAGE_TOOL, "name": "a.b"}]}, "tools.0.name: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
        ({"tools": [MESSAGE_TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: "),
        ({"tools": [MESSAGE_TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type: "),
        ({"tools": [MESSAGE_TOOL], "output_format": {"type": "json_schema", "schema": {}}},
         "output_config.format: "),
        ({"messages": [{"role": "user", "content": [USE_BLOCK]}]}, "messages.0.content.0: tool_use blocks"),
        ({"messages": [USER, {"role": "assistant", "content": [RESULT_BLOCK]}]}, "messages.1.content.0: "),
        ({"messages": [USER, {"role": "assistant", "content": [USE_BLOCK]}]}, "messages.1: a final tool_use"),
        ({"messages": [{"role": "user", "content": [RESULT_BLOCK | {"content": [{"type": "image"}]}]}]},
         "messages.0.content.0.tool_result.content: block 0 of type 'image'"),
        ({"messages": [{"role": "user", "content": [RESULT_BLOCK | {"tool_use_id": "\n"}]}]},
         "messages.0.content.0.tool_result.tool_use_id: "),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content: block 0 "),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages.0.content: block 0 is not supported"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}], "tools": [MESSAGE_TOOL],
          "tool_choice": {"type": "any"}}, "messages.1: a final assistant message"),
    ],
)  # fmt: skip
def test_refusals_of_a_message_name_their_field(fields: dict[str, object], word: str) -> None:
    with pytest.raises(MessageRefused) as caught:
        message(**fields)
    assert str(caught.value).startswith(word)


def test_a_model_without_a_tool_format_takes_no_tools() -> None:
    body = read_chat({"model": "m", "messages": [USER], "tools": [CHAT_TOOL]})
    with pytest.raises(RequestRefused) as caught:
        chat_generations(body, chat_template=True, default_tokens=9)
    assert caught.value.param == "tools"
    flat = read_response({"model": "m", "input": "x", "tools": [ITEM_TOOL]})
    with pytest.raises(RequestRefused) as caught:
        response_generation(flat, chat_template=True, default_tokens=9)
    assert caught.value.param == "tools"
    given = read_message_body(CountBody, {"model": "m", "messages": [USER], "tools": [MESSAGE_TOOL]})
    with pytest.raises(MessageRefused, match="tools: this model takes no tools"):
        chat_input(given, chat_template=True)


def test_arguments_that_are_no_object_come_back_as_one() -> None:
    assert object_of("") == object_of(" ") == object_of("{}") == {}
    assert object_of('{"a": [1') == {"INVALID_JSON": '{"a": [1'}
    assert object_of("[1]") == {"INVALID_JSON": "[1]"}
    assert object_text('{ "a": 1}') == '{ "a": 1}' and object_text("") == ""
    assert json.loads(object_text('{"a')) == {"INVALID_JSON": '{"a'}
    broken = CALL | {"function": {"name": "weather", "arguments": '{"a'}}
    (_, turn) = chat(messages=[USER, {"role": "assistant", "tool_calls": [broken]}]).messages
    assert json.loads(turn.tool_calls[0].arguments) == {"INVALID_JSON": '{"a'}


@pytest.mark.parametrize(
    ("field", "chat_param", "response_param", "message_field"),
    [
        ("chat.tools", "tools", "tools", "tools"),
        ("chat.tools[1].parameters", "tools.[1].function.parameters", "tools.[1].parameters",
         "tools.1.input_schema"),
        ("chat.tools[1].name", "tools.[1].function.name", "tools.[1].name", "tools.1.name"),
        ("chat.forced_tool", "tool_choice", "tool_choice", "tool_choice"),
        ("chat.forced_tool.name", "tool_choice.name", "tool_choice.name", "tool_choice.name"),
        ("messages[2].tool_calls[0].arguments", "messages.[2].tool_calls.[0].function.arguments",
         "input.[2].tool_calls.[0].arguments", "messages.2.tool_calls.0.arguments"),
        ("chat.continue_final_message", "continue_final_message", "continue_final_message", "messages"),
    ],
)  # fmt: skip
def test_violations_have_the_names_of_each_api(
    field: str, chat_param: str, response_param: str, message_field: str
) -> None:
    error = UpstreamError(Reason.INVALID_REQUEST, violations=(Violation(field, "is bad"),))
    body: Any = openai_errors.upstream_body(error, chat_schema.NAMES)
    assert body["error"]["param"] == chat_param
    body = openai_errors.upstream_body(error, responses_schema.NAMES)
    assert body["error"]["param"] == response_param
    told: Any = anthropic_errors.upstream_body(error)
    assert told["error"]["message"] == f"{message_field}: is bad"
