"""Owns tools as messages name them: the tools, the choice, and the blocks of calls and results.

Choices: the caller's own tools only, those that Anthropic's servers run are refused by type; with a
choice of `none` the model is not told of the tools; a choice of `any` or `tool` makes exactly one call.
A result with `is_error` reaches the model as its text behind `Error: `, as templates know no other way.
"""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError

from edge.anthropic.errors import RequestRefused
from edge.protocol.call_scan import NAME
from edge.upstream.records import Tool, ToolCall
from edge.upstream.tools import ToolUse

MAX_TOOLS: Final = 128
MAX_ID: Final = 128
DROPPED: Final = ("thinking", "redacted_thinking")
"""Blocks that come back to us and go nowhere."""


def unsupported(text: str) -> PydanticCustomError:
    """Return a fault told in words."""
    return PydanticCustomError("unsupported", "{text}", {"text": text})


class Strict(BaseModel):
    """What all bodies are: immutable, strict, and blind to fields they do not know."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def _custom(value: object) -> object:
    if isinstance(value, str) and value != "custom":
        raise unsupported(f"tools of type '{value:.40}' are not supported, only the caller's own")
    return value


def _name(value: str) -> str:
    if NAME.fullmatch(value) is None:
        raise unsupported("must have 1 to 64 characters of a-z, A-Z, 0-9, underscore and hyphen")
    return value


def _call_id(value: str) -> str:
    if not (0 < len(value) <= MAX_ID and value.isascii() and value.isprintable()):
        raise unsupported(f"must have 1 to {MAX_ID} printable ASCII characters")
    return value


_Name = Annotated[str, AfterValidator(_name)]
_Id = Annotated[str, AfterValidator(_call_id)]


class GivenTool(Strict):
    """One tool."""

    type: Annotated[str, BeforeValidator(_custom)] | None = None
    name: _Name
    description: str | None = None
    input_schema: dict[str, JsonValue]

    def tool(self) -> Tool:
        """Return it for the service."""
        return Tool(self.name, self.description or "", orjson.dumps(self.input_schema).decode())


class ToolChoice(Strict):
    """How the model is to choose."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
    """True: the answer ends with its first call."""


GivenTools = Annotated[list[GivenTool], Field(max_length=MAX_TOOLS)]


def read_tool_use(tools: Sequence[GivenTool], choice: ToolChoice | None) -> ToolUse | None:
    """Return what is asked of tools; None for nothing. Raises RequestRefused."""
    names: set[str] = set()
    for at, tool in enumerate(tools):
        if tool.name in names:
            raise RequestRefused(f"tools.{at}.name", "another tool has the same name")
        names.add(tool.name)
    kind = choice.type if choice is not None else "auto"
    if kind == "none":
        return None
    forced: str | None = None
    if kind != "auto":
        forced = "" if choice is None or kind == "any" else choice.name or ""
        if not names:
            raise RequestRefused("tool_choice", "needs tools")
        if kind == "tool" and forced not in names:
            raise RequestRefused("tool_choice.name", "no tool has this name")
    if not names:
        return None
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    return ToolUse(tuple(tool.tool() for tool in tools), forced, is_parallel)


def text_of(value: object) -> object:
    """Return a content that is a list of text blocks as text; anything else as it is."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for at, block in enumerate(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in DROPPED:
            continue
        if kind != "text":
            shown = f" of type '{kind:.40}'" if isinstance(kind, str) else ""
            raise unsupported(f"block {at}{shown} is not supported, only text")
        if not isinstance(block["text"] if "text" in block else None, str):
            raise unsupported(f"block {at} needs a text")
        texts.append(block["text"])
    return "\n".join(texts)


Content = Annotated[str, BeforeValidator(text_of)]


class TextBlock(Strict):
    """Text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(Strict):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: _Id
    name: _Name
    input: dict[str, JsonValue] | None = None

    def call(self) -> ToolCall:
        """Return it for the service."""
        return ToolCall(self.id, self.name, orjson.dumps(self.input or {}).decode())


class ToolResultBlock(Strict):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: _Id
    content: Content | None = None
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """What the model is told."""
        return f"Error: {self.content or ''}" if self.is_error else self.content or ""


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


def blocks_of(value: object) -> object:
    """Return a content as a list of the blocks that are supported."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list):
        raise unsupported("must be a string or a list of blocks")
    kept = []
    for at, block in enumerate(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in DROPPED:
            continue
        if kind not in ("text", "tool_use", "tool_result"):
            shown = f" of type '{kind:.40}'" if isinstance(kind, str) else ""
            raise unsupported(f"block {at}{shown} is not supported")
        kept.append(block)
    return kept
