"""Each bound of a conversation and its tools is kept, and a violation names its field."""

from __future__ import annotations

import json

import pytest

from service.domain.admission import check_counted, check_request
from service.domain.chat import (
    MAX_CALLS,
    MAX_TOOL_BYTES,
    MAX_TOOLS,
    ChatMessage,
    ChatPrompt,
    ForcedTool,
    Tool,
    ToolCall,
)
from service.domain.errors import InvalidRequest, UnsupportedByEngine
from service.domain.json_text import MAX_NESTING
from service.domain.request import GenerationRequest, JsonSchema, Regex, TextPrompt, check
from service.domain.violation import FieldViolation
from service.ports.engine import Capability, EngineInfo
from service.runtime.creation import NewPrediction

USER = ChatMessage("user", "x")
TOOL = Tool("f")
PATH = "messages[1].tool_calls[0]"
BAD_JSON = ["[]", "1", "{", "nonsense", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "null"]


def deep(levels: int) -> str:
    """Return an object nested so deep."""
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


def tools(*given: Tool) -> ChatPrompt:
    return ChatPrompt((USER,), given)


def called(**changes: str) -> ChatPrompt:
    call = ToolCall(**{"id": "c", "name": "f", **changes})
    return ChatPrompt((USER, ChatMessage("assistant", "", (call,))))


def unfinished(*messages: ChatMessage, **fields: object) -> ChatPrompt:
    return ChatPrompt(messages, continue_final_message=True, **fields)  # type: ignore[arg-type]  # as named


def fields(prompt: ChatPrompt, constraint: JsonSchema | Regex | None = None) -> list[str]:
    return [violation.field for violation in check(GenerationRequest(prompt, constraint=constraint))]


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        *((tools(Tool(name)), "chat.tools[0].name") for name in ("", "a b", "é", "x" * 65, "a.b", "a\n")),
        (tools(TOOL, Tool("g"), TOOL), "chat.tools[2].name"),
        (tools(Tool("f", "é" * (MAX_TOOL_BYTES // 2 + 1))), "chat.tools[0].description"),
        (tools(TOOL, Tool("g", "", f'{{"a":"{"x" * MAX_TOOL_BYTES}"}}')), "chat.tools[1].parameters"),
        *((tools(Tool("f", "", bad)), "chat.tools[0].parameters") for bad in BAD_JSON),
        (tools(Tool("f", "", deep(MAX_NESTING + 1))), "chat.tools[0].parameters"),
        (tools(Tool("f", "", '{"type": "string"}')), "chat.tools[0].parameters"),
        (tools(Tool("f", "", '{"type": ["object", "null"]}')), "chat.tools[0].parameters"),
        (tools(*(Tool(f"f{i}") for i in range(MAX_TOOLS + 1))), "chat.tools"),
        (tools(*(Tool(f"f{i}", "x" * 16_000) for i in range(17))), "chat.tools"),
        *((called(name=name), f"{PATH}.name") for name in ("", "a b", "x" * 65)),
        *((called(id=id_), f"{PATH}.id") for id_ in ("é", "a\n", "x" * 129)),
        *((called(arguments=bad), f"{PATH}.arguments") for bad in BAD_JSON),
        (called(arguments=deep(MAX_NESTING + 1)), f"{PATH}.arguments"),
        (called(arguments=json.dumps({"a": "x" * 2**18})), f"{PATH}.arguments"),
        (
            ChatPrompt(
                (ChatMessage("assistant", "", (ToolCall("c", "f", f'{{"a":"{"x" * 2**17}"}}'),) * 9),)
            ),
            "messages",
        ),
        (
            ChatPrompt((ChatMessage("assistant", "", (ToolCall("c", "f"),) * (MAX_CALLS + 1)),)),
            "messages[0].tool_calls",
        ),
        (ChatPrompt((ChatMessage("user", "x", (ToolCall("c", "f"),)),)), "messages[0].tool_calls"),
        (ChatPrompt((ChatMessage("user", "x", (), "c"),)), "messages[0].tool_call_id"),
        (ChatPrompt((USER, ChatMessage("tool", "x", (), "é"))), "messages[1].tool_call_id"),
        (ChatPrompt((ChatMessage("assistant", ""),)), "messages"),
        (ChatPrompt((USER,), (), ForcedTool()), "chat.forced_tool"),
        (ChatPrompt((USER,), (TOOL,), ForcedTool("g")), "chat.forced_tool.name"),
        (unfinished(USER), "chat.continue_final_message"),
        (unfinished(USER, ChatMessage("assistant", "")), "chat.continue_final_message"),
        (
            unfinished(USER, ChatMessage("assistant", "x", (ToolCall("c", "f"),))),
            "chat.continue_final_message",
        ),
        (
            unfinished(USER, ChatMessage("assistant", "x"), tools=(TOOL,), forced_tool=ForcedTool()),
            "chat.forced_tool",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_out_of_bounds_is_named(prompt: ChatPrompt, named: str) -> None:
    assert fields(prompt) == [named]


@pytest.mark.parametrize(
    "prompt",
    [
        tools(Tool("a-B_9" * 12, "é" * (MAX_TOOL_BYTES // 2), deep(MAX_NESTING))),
        tools(*(Tool(f"f{i}") for i in range(MAX_TOOLS))),
        tools(Tool("f", "", "{}"), Tool("F", "", '{"anyOf": [{"type": "object"}]}')),
        called(),
        called(id="", arguments="{}"),
        called(arguments='{"a": 1.5e300, "b": [null, "é"]}'),
        ChatPrompt((ChatMessage("assistant", "", (ToolCall("c", "f"),)), ChatMessage("tool", "", (), "c"))),
        ChatPrompt((USER,), (TOOL,), ForcedTool()),
        ChatPrompt((USER,), (TOOL,), ForcedTool("f")),
        unfinished(USER, ChatMessage("assistant", " ")),
        unfinished(USER, ChatMessage("assistant", "x"), tools=(TOOL,)),
    ],
)
def test_what_is_within_bounds_passes(prompt: ChatPrompt) -> None:
    assert fields(prompt) == []


def test_a_forced_tool_excludes_another_constraint() -> None:
    forced = ChatPrompt((USER,), (TOOL,), ForcedTool())
    assert fields(forced, JsonSchema("{}")) == fields(forced, Regex("a")) == ["chat.forced_tool"]
    assert fields(ChatPrompt((USER,), (TOOL,)), JsonSchema("{}")) == []


class TestAdmission:
    """What a model must have for it."""

    @staticmethod
    def refused(prompt: ChatPrompt, info: EngineInfo, *, counted: bool = False) -> list[str]:
        given = {
            "engine": "e",
            "capabilities": info.request_fields,
            "chat_template": info.chat_template,
        }
        try:
            if counted:
                check_counted(prompt, **given)  # type: ignore[arg-type]  # as named
            else:
                check_request(GenerationRequest(prompt), **given)  # type: ignore[arg-type]  # as named
        except UnsupportedByEngine as error:
            return [violation.field for violation in error.violations]
        return []

    DEAF = EngineInfo("e", 1, 9, 9, True, capabilities=frozenset({Capability.JSON_SCHEMA.value}))
    FREE = EngineInfo("e", 1, 9, 9, True, tool_format="hermes")
    ABLE = EngineInfo("e", 1, 9, 9, True, capabilities=DEAF.capabilities, tool_format="hermes")
    RAW = EngineInfo("e", 1, 9, 9, False)

    def test_tools_need_a_template_that_knows_them(self) -> None:
        for prompt in (tools(TOOL), called()):
            assert self.refused(prompt, self.DEAF) == ["chat.tools"]
            assert self.refused(prompt, self.DEAF, counted=True) == ["chat.tools"]
            assert self.refused(prompt, self.ABLE) == self.refused(prompt, self.FREE) == []

    def test_a_forced_tool_needs_an_engine_that_keeps_schemas(self) -> None:
        forced = ChatPrompt((USER,), (TOOL,), ForcedTool())
        assert self.refused(forced, self.FREE) == ["chat.forced_tool"]
        assert self.refused(forced, self.ABLE) == []

    def test_an_unfinished_message_needs_a_template(self) -> None:
        prompt = unfinished(USER, ChatMessage("assistant", "x"))
        assert self.refused(prompt, self.RAW) == ["chat"]
        assert self.refused(prompt, self.DEAF) == []

    def test_a_count_judges_chats_only(self) -> None:
        given = {"engine": "e", "capabilities": frozenset[str](), "chat_template": False}
        check_counted(TextPrompt(""), **given)  # type: ignore[arg-type]  # as named
        with pytest.raises(InvalidRequest) as refused:
            check_counted(tools(Tool("")), **given)  # type: ignore[arg-type]  # as named
        (violation,) = refused.value.violations
        assert isinstance(violation, FieldViolation) and violation.field == "chat.tools[0].name"


def test_a_create_without_tools_has_the_digest_that_it_always_had() -> None:
    messages = (ChatMessage("system", "s"), USER)
    digest = NewPrediction("a/b", GenerationRequest(ChatPrompt(messages))).body_hash()
    assert digest.hex() == "1da3c249cb3c81d3701109c3fdb46b896561750f2220596184f5a1d141ed51c5"


def test_creates_with_other_tools_have_other_digests() -> None:
    prompts = [
        ChatPrompt((USER,)),
        tools(TOOL),
        tools(Tool("f", "d")),
        ChatPrompt((USER,), (TOOL,), ForcedTool()),
        ChatPrompt((USER,), (TOOL,), ForcedTool("f")),
        called(),
        called(id="other"),
        ChatPrompt((USER,), continue_final_message=True),
    ]
    digests = {NewPrediction("a/b", GenerationRequest(prompt)).body_hash() for prompt in prompts}
    assert len(digests) == len(prompts)
