"""Owns the bodies of messages and of their token counts, and what is generated from them.

Choices: unknown fields are ignored and types are strict; text blocks of a content, and turns of one
role in a row, are joined by line feeds; `thinking` blocks that come back to us are dropped, and asking
to think is ignored, since no model here does; `max_tokens: 0` is refused, as nothing is primed by it;
other blocks are refused by name. A final assistant message is unfinished: the answer goes on with it.
Tools do not go with an output format, which would forbid the model to call.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar, assert_never

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from edge.anthropic.errors import RequestRefused
from edge.anthropic.tools import (
    Block,
    Content,
    GivenTools,
    Strict,
    TextBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
    read_tool_use,
    unsupported,
)
from edge.upstream.records import ChatInput, ChatMessage, Generation, Sampling, Stopping, ToolCall
from edge.upstream.tools import ToolUse

MAX_MESSAGES: Final = 1024
MAX_STOP_SEQUENCES: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_JSON_SCHEMA_BYTES: Final = 16 * 1024

HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "mcp_servers": ([],),
    "container": (),
}
"""Fields we know and cannot do, and the values of them that ask for nothing."""


def _sequence(value: str) -> str:
    if not 0 < len(value.encode()) <= MAX_STOP_BYTES:
        raise unsupported(f"each must have 1 to {MAX_STOP_BYTES} bytes")
    return value


_Body = TypeVar("_Body", bound=Strict)


class Message(Strict):
    """One turn."""

    role: Literal["user", "assistant"]
    content: Annotated[list[Block], BeforeValidator(blocks_of)]

    def turns(self) -> list[ChatMessage]:
        """Return it for the service: a call's result is a turn of its own."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        turns: list[ChatMessage] = []
        for block in self.content:
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ToolUseBlock():
                    calls.append(block.call())
                case ToolResultBlock():
                    if texts:
                        turns.append(ChatMessage(self.role, "\n".join(texts)))
                        texts = []
                    turns.append(ChatMessage("tool", block.text, tool_call_id=block.tool_use_id))
                case _:
                    assert_never(block)
        if texts or calls or not turns:
            turns.append(ChatMessage(self.role, "\n".join(texts), tuple(calls)))
        return turns


class _Format(Strict):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]


class _OutputConfig(Strict):
    format: _Format | None = None


class CountBody(Strict):
    """The body of a count: that of a message without what decides the answer."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    tools: GivenTools | None = None
    tool_choice: ToolChoice | None = None

    @property
    def tool_use(self) -> ToolUse | None:
        """What it asks of tools. Raises RequestRefused."""
        return read_tool_use(self.tools or (), self.tool_choice)


class MessageBody(CountBody):
    """The body of a message."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: (
        Annotated[
            list[Annotated[str, AfterValidator(_sequence)]],
            Field(max_length=MAX_STOP_SEQUENCES),
        ]
        | None
    ) = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None
    """An older name of `output_config.format`."""

    @property
    def json_schema(self) -> str | None:
        """The JSON schema of the output as text. Raises RequestRefused for one that is too long."""
        given = self.output_config.format if self.output_config is not None else None
        given = given or self.output_format
        if given is None:
            return None
        text = orjson.dumps(given.schema_)
        if len(text) > MAX_JSON_SCHEMA_BYTES:
            limit = f"the schema may have {MAX_JSON_SCHEMA_BYTES} bytes at most"
            raise RequestRefused("output_config.format", limit)
        return text.decode()


def read_body(kind: type[_Body], body: object) -> _Body:
    """Return `body`, checked. Raises RequestRefused."""
    if not isinstance(body, dict):
        raise RequestRefused("body", "must be a JSON object")
    for name, values in HARMLESS.items():
        if body.get(name) is not None and body[name] not in values:
            raise RequestRefused(name, "is not supported here")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _fault(error.errors(include_url=False)[0]) from None


def chat_input(body: CountBody, *, chat_template: bool, tools: bool = False) -> ChatInput:
    """Return the conversation; `tools`: whether the model takes any. Raises RequestRefused."""
    if not chat_template:
        raise RequestRefused("messages", "this model has no chat template")
    use = body.tool_use
    if use is not None and not tools:
        raise RequestRefused("tools", "this model takes no tools")
    turns = [ChatMessage("system", body.system)] if body.system else []
    for at, message in enumerate(body.messages):
        _check_blocks(message, at)
        for turn in message.turns():
            if turns and turn.role != "tool" and turns[-1].role == turn.role:
                turns[-1] = _joined(turns[-1], turn)
            else:
                turns.append(turn)
    if not any(turn.content or turn.tool_calls for turn in turns if turn.role != "system"):
        raise RequestRefused("messages", "at least one message needs content")
    last = f"messages.{len(body.messages) - 1}"
    is_prefill = turns[-1].role == "assistant"
    if is_prefill and turns[-1].tool_calls:
        raise RequestRefused(last, "a final tool_use needs its tool_result in a user message")
    if is_prefill and use is not None and use.forced is not None:
        raise RequestRefused(last, "a final assistant message cannot be combined with a forced tool")
    if use is None:
        return ChatInput(tuple(turns), continue_final_message=is_prefill)
    return ChatInput(tuple(turns), use.tools, use.forced, is_prefill)


def _check_blocks(message: Message, at: int) -> None:
    """Raise RequestRefused for blocks of the other role."""
    for number, block in enumerate(message.content):
        if block.type == ("tool_use" if message.role == "user" else "tool_result"):
            text = f"{block.type} blocks do not belong in a message of the {message.role}"
            raise RequestRefused(f"messages.{at}.content.{number}", text)


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    texts = [turn.content for turn in (first, second) if turn.content]
    return ChatMessage(first.role, "\n".join(texts), first.tool_calls + second.tool_calls)


def message_generation(body: MessageBody, *, chat_template: bool, tools: bool = False) -> Generation:
    """Return what to generate; `tools`: whether the model takes any. Raises RequestRefused."""
    schema = body.json_schema
    if schema is not None and body.tool_use is not None:
        raise RequestRefused("output_config.format", "cannot be combined with tools")
    return Generation(
        input=chat_input(body, chat_template=chat_template, tools=tools),
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        stopping=Stopping(max_tokens=body.max_tokens, stop=tuple(body.stop_sequences or ())),
        json_schema=schema,
    )


_TEXTS: Final = {
    "missing": "Field required",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be a boolean",
    "string_type": "must be a string or a list of blocks",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "less_than_equal": "must be at most {le:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "too_long": "must have {max_length} items at most",
    "too_short": "must have {min_length} items at least",
    "literal_error": "must be one of {expected}",
    "unsupported": "{text}",
}


def _fault(detail: ErrorDetails) -> RequestRefused:
    """Return pydantic's account of a fault as ours; it never repeats the caller's value."""
    field = ".".join(str(part).removesuffix("_") for part in detail["loc"])
    return RequestRefused(field, _TEXTS.get(detail["type"], "is not valid").format(**detail.get("ctx", {})))
