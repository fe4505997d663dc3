"""Owns the bodies of messages and of their token counts, and what is generated from them.

Choices: unknown fields are ignored and types are strict; text blocks of a content, and turns of one
role in a row, are joined by line feeds; `thinking` blocks that come back to us are dropped, and asking
to think is ignored, since no model here does; `max_tokens: 0` is refused, as nothing is primed by it;
other blocks and tools are refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from edge.anthropic.errors import RequestRefused
from edge.upstream.records import ChatInput, ChatMessage, Generation, Sampling, Stopping

MAX_MESSAGES: Final = 1024
MAX_STOP_SEQUENCES: Final = 16
MAX_STOP_BYTES: Final = 256
MAX_JSON_SCHEMA_BYTES: Final = 16 * 1024

HARMLESS: Final[Mapping[str, tuple[object, ...]]] = {
    "tools": ([],),
    "tool_choice": ({"type": "none"}, {"type": "auto"}),
    "mcp_servers": ([],),
    "container": (),
}
"""Fields we know and cannot do, and the values of them that ask for nothing."""


def _unsupported(text: str) -> PydanticCustomError:
    return PydanticCustomError("unsupported", "{text}", {"text": text})


def _text(value: object) -> object:
    """Return a content that is a list of text blocks as text; anything else as it is."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for at, block in enumerate(value):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind in ("thinking", "redacted_thinking"):
            continue
        if kind != "text":
            shown = f" of type '{kind:.40}'" if isinstance(kind, str) else ""
            raise _unsupported(f"block {at}{shown} is not supported, only text")
        if not isinstance(block["text"] if "text" in block else None, str):
            raise _unsupported(f"block {at} needs a text")
        texts.append(block["text"])
    return "\n".join(texts)


def _sequence(value: str) -> str:
    if not 0 < len(value.encode()) <= MAX_STOP_BYTES:
        raise _unsupported(f"each must have 1 to {MAX_STOP_BYTES} bytes")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


_Body = TypeVar("_Body", bound=_Strict)
_Content = Annotated[str, BeforeValidator(_text)]


class Message(_Strict):
    """One turn."""

    role: Literal["user", "assistant"]
    content: _Content


class _Format(_Strict):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, JsonValue], Field(alias="schema")]


class _OutputConfig(_Strict):
    format: _Format | None = None


class CountBody(_Strict):
    """The body of a count: that of a message without what decides the answer."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: _Content | None = None


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


def chat_input(body: CountBody, *, chat_template: bool) -> ChatInput:
    """Return the conversation. Raises RequestRefused for one that cannot be rendered."""
    if not chat_template:
        raise RequestRefused("messages", "this model has no chat template")
    if body.messages[-1].role == "assistant":
        at = len(body.messages) - 1
        text = "a final assistant message (prefill) is not supported: the model's template cannot continue it"
        raise RequestRefused(f"messages.{at}.role", text)
    turns = [ChatMessage("system", body.system)] if body.system else []
    for message in body.messages:
        if turns and turns[-1].role == message.role:
            turns[-1] = ChatMessage(message.role, f"{turns[-1].content}\n{message.content}")
        else:
            turns.append(ChatMessage(message.role, message.content))
    if not any(turn.content for turn in turns if turn.role != "system"):
        raise RequestRefused("messages", "at least one message needs content")
    return ChatInput(tuple(turns))


def message_generation(body: MessageBody, *, chat_template: bool) -> Generation:
    """Return what to generate. Raises RequestRefused."""
    return Generation(
        input=chat_input(body, chat_template=chat_template),
        sampling=Sampling(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        stopping=Stopping(max_tokens=body.max_tokens, stop=tuple(body.stop_sequences or ())),
        json_schema=body.json_schema,
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
