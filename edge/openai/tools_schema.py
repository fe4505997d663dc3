"""Owns tools as the bodies of chat completions and responses name them, and what they ask for.

Choices: function tools only, others are refused by name, and so is a choice of `allowed_tools`. With
`tool_choice: none` the model is not told of the tools. A choice that forces a call makes exactly one.
`strict` is taken: a forced call always keeps its schema, one that the model decides on never must.
Arguments that come back to us and are no JSON object go to the model as `{"INVALID_JSON": "…"}`.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from edge.openai.errors import RequestRefused
from edge.openai.fields import Strict
from edge.protocol.call_scan import NAME
from edge.upstream.records import Tool, ToolCall
from edge.upstream.tools import ToolUse, object_text

MAX_TOOLS: Final = 128
MAX_CALLS: Final = 64
"""Of one message."""

MAX_CALL_ID: Final = 128


def _function(value: object) -> object:
    if isinstance(value, str) and value != "function":
        text = f"tools of type '{value:.40}' are not supported, only functions"
        raise PydanticCustomError("unsupported", "{text}", {"text": text})
    return value


def _name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        text = "must have 1 to 64 characters of a-z, A-Z, 0-9, underscore and hyphen"
        raise PydanticCustomError("invalid_value", "{text}", {"text": text})
    return value


def _call_id(value: str) -> str:
    if not (0 < len(value) <= MAX_CALL_ID and value.isascii() and value.isprintable()):
        text = f"must have 1 to {MAX_CALL_ID} printable ASCII characters"
        raise PydanticCustomError("invalid_value", "{text}", {"text": text})
    return value


Kind = Annotated[str, BeforeValidator(_function)]
Name = Annotated[str, AfterValidator(_name)]
CallId = Annotated[str, AfterValidator(_call_id)]


class FunctionTool(Strict):
    """A function: `function` of a chat's tool, or a response's tool itself."""

    name: Name
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """Return it for the service."""
        parameters = "" if self.parameters is None else orjson.dumps(self.parameters).decode()
        return Tool(self.name, self.description or "", parameters)


class ChatTool(Strict):
    """A tool of a chat."""

    type: Kind
    function: FunctionTool


class _Typed(Strict):
    type: Kind


class ResponseTool(FunctionTool, _Typed):
    """A tool of a response."""


ChatTools = Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)]
ResponseTools = Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS)]


class _CalledFunction(Strict):
    name: Name
    arguments: str = ""


class Call(Strict):
    """A call in an earlier turn of a chat."""

    id: CallId
    type: Kind = "function"
    function: _CalledFunction

    def tool_call(self) -> ToolCall:
        """Return it for the service."""
        return ToolCall(self.id, self.function.name, object_text(self.function.arguments))


def read_tool_use(
    tools: Sequence[FunctionTool], choice: JsonValue, *, is_parallel: bool | None, place: str
) -> ToolUse | None:
    """Return what is asked of tools; None for nothing. Raises RequestRefused.

    `place` is where a tool's name stands, with `{}` for the tool's number.
    """
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.name in seen:
            param = place.format(at)
            raise RequestRefused(f"Invalid '{param}': another tool has the same name.", param)
        seen.add(tool.name)
    forced: str | None = None
    match choice:
        case None | "auto":
            pass
        case "none":
            return None
        case "required":
            forced = ""
        case {"type": "function", "name": str(name)} | {"type": "function", "function": {"name": str(name)}}:
            forced = name
        case {"type": str(kind)} if kind != "function":
            text = f"'tool_choice' of type '{kind:.40}' is not supported."
            raise RequestRefused(text, "tool_choice", "unsupported_value")
        case _:
            text = "Invalid 'tool_choice': must be 'none', 'auto', 'required' or name a function."
            raise RequestRefused(text, "tool_choice")
    if forced is not None and not seen:
        raise RequestRefused("'tool_choice' needs tools.", "tool_choice")
    if forced and forced not in seen:
        raise RequestRefused("Invalid 'tool_choice': no tool has this name.", "tool_choice")
    if not tools:
        return None
    return ToolUse(tuple(tool.tool() for tool in tools), forced, is_parallel is not False)
