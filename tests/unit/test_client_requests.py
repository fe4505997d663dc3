"""The Python client's keyword arguments become the messages that they name."""

from __future__ import annotations

from typing import Any

import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from tailrace.requests import generation

TURNS = [{"role": "user", "content": "x"}]


def test_tools_and_calls_take_objects_or_text() -> None:
    request = generation(
        chat=[
            *TURNS,
            {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": {"a": 1}}]},
            {"role": "tool", "content": "y", "tool_call_id": "1"},
        ],
        tools=[{"name": "f", "description": "d", "parameters": {"type": "object"}}, {"name": "g"}],
        forced_tool="f",
        temperature=0,
    )
    call = pb.ToolCall(id="1", name="f", arguments='{"a": 1}')
    assert request == pb.GenerationRequest(
        chat=pb.ChatInput(
            messages=[
                pb.ChatMessage(role="user", content="x"),
                pb.ChatMessage(role="assistant", tool_calls=[call]),
                pb.ChatMessage(role="tool", content="y", tool_call_id="1"),
            ],
            tools=[pb.Tool(name="f", description="d", parameters='{"type": "object"}'), pb.Tool(name="g")],
            forced_tool=pb.ForcedTool(name="f"),
        ),
        sampling=pb.Sampling(temperature=0),
    )
    as_text = generation(chat=TURNS, tools=[{"name": "f", "parameters": "{}"}]).chat.tools[0]
    assert as_text.parameters == "{}"


def test_any_tool_is_forced_by_an_empty_name_and_none_by_none() -> None:
    assert generation(chat=TURNS, tools=[{"name": "f"}], forced_tool="").chat.HasField("forced_tool")
    assert not generation(chat=TURNS, tools=[{"name": "f"}]).chat.HasField("forced_tool")


def test_the_last_message_can_be_left_open() -> None:
    turns = [*TURNS, {"role": "assistant", "content": "Once"}]
    assert generation(chat=turns, continue_final_message=True).chat.continue_final_message


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": "x", "tools": [{"name": "f"}]},
        {"prompt": "x", "forced_tool": ""},
        {"token_ids": [1], "continue_final_message": True},
        {"chat": TURNS, "tools": [{"title": "f"}]},
        {"chat": [{"role": "user", "text": "x"}]},
        {"chat": TURNS, "tool_choice": "f"},
    ],
)
def test_what_no_message_has_is_a_type_error(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        generation(**options)
