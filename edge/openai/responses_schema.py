"""Owns the body of a response, and what is generated from it.

Choices: nothing is stored, so `store: true`, `previous_response_id`, `conversation` and `background`
are refused by name; `instructions` is the system's turn before the input; input items other than
messages of text, function calls, their outputs and references to such are refused; `truncation: auto`
is taken and does nothing, as we never cut an input. Tools go neither with a `text.format`, which
would forbid the model to call, nor with log probabilities. Calls belong to the assistant's message
right before them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal, assert_never

from pydantic import BeforeValidator, Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError

from edge.openai.chat_schema import MAX_MESSAGES, join_parts
from edge.openai.errors import RequestRefused
from edge.openai.fields import MAX_INT64, Count, ResponseFormat, Strict, read_body
from edge.openai.tools_schema import CallId, Name, ResponseTools, read_tool_use
from edge.upstream.records import ChatInput, ChatMessage, Generation, Sampling, Stopping, ToolCall
from edge.upstream.tools import ToolUse, object_text

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "store": (False,),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "modalities": ([], ["text"]),
}
LOGPROBS: Final = "message.output_text.logprobs"
"""The one item of `include` that has an effect."""

NAMES: Final = {
    "logprobs": "top_logprobs",
    "json_schema": "text.format",
    "max_tokens": "max_output_tokens",
    "prompt": "input",
    "chat": "input",
    "messages": "input",
    "token_ids": "input",
    "forced_tool": "tool_choice",
}


class MessageItem(Strict):
    """One message of the input."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(join_parts)]


class CallItem(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: CallId
    name: Name
    arguments: str = ""


class OutputItem(Strict):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: CallId
    output: Annotated[str, BeforeValidator(join_parts)]


class ReferenceItem(Strict):
    """An item of an earlier response, by its id alone."""

    type: Literal["item_reference"] | None = None
    id: str


Item = MessageItem | CallItem | OutputItem | ReferenceItem
_ITEMS: Final[Mapping[str, type[Item]]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
    "item_reference": ReferenceItem,
}


class TextOptions(Strict):
    """`text`."""

    format: ResponseFormat | None = None


class ResponseBody(Strict):
    """The body."""

    model: str
    input: Annotated[tuple[Item, ...], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    """Items other than `LOGPROBS` have no effect."""

    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    """Above 0 it asks for log probabilities by itself."""

    metadata: dict[str, JsonValue] | None = None
    """Repeated in the answer."""

    user: str | None = None
    seed: Annotated[int, Field(ge=-1, le=MAX_INT64)] | None = None
    tools: ResponseTools | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    """False: the answer ends with its first call."""

    @field_validator("input", mode="plain")
    @classmethod
    def _items(cls, value: object) -> tuple[Item, ...]:
        if isinstance(value, str):
            return (MessageItem(role="user", content=value),)
        if not isinstance(value, list) or not value:
            text = "must be a string or a list of items, and not empty"
            raise PydanticCustomError("invalid_value", "{text}", {"text": text})
        if len(value) > MAX_MESSAGES:
            text = f"must have {MAX_MESSAGES} items at most"
            raise PydanticCustomError("invalid_value", "{text}", {"text": text})
        return tuple(_read_item(at, item) for at, item in enumerate(value))

    @property
    def tool_use(self) -> ToolUse | None:
        """What it asks of tools. Raises RequestRefused."""
        parallel = self.parallel_tool_calls
        return read_tool_use(
            self.tools or (), self.tool_choice, is_parallel=parallel, place="tools.[{}].name"
        )

    @property
    def format(self) -> ResponseFormat | None:
        """How the output is to be formed."""
        return self.text.format if self.text is not None else None

    @property
    def logprobs(self) -> int | None:
        """How many alternatives a token; None for no log probabilities at all."""
        return self.top_logprobs or (0 if LOGPROBS in (self.include or ()) else None)


def read_response(body: object) -> ResponseBody:
    """Return the body, checked. Raises RequestRefused."""
    given = read_body(ResponseBody, body, HARMLESS)
    if not any(not isinstance(item, MessageItem) or item.content for item in given.input):
        raise RequestRefused("'input' needs some text.", "input")
    if given.tool_use is not None and given.format is not None and given.format.type != "text":
        text = "'text.format' cannot be combined with tools."
        raise RequestRefused(text, "text.format", "unsupported_parameter")
    if given.tool_use is not None and given.logprobs is not None:
        name = "top_logprobs" if given.top_logprobs else "include"
        text = "Log probabilities cannot be combined with tools."
        raise RequestRefused(text, name, "unsupported_parameter")
    return given


def _read_item(at: int, item: object) -> Item:
    kind = item.get("type") or "message" if isinstance(item, dict) else None
    made = _ITEMS.get(kind) if isinstance(kind, str) else None
    if made is None:
        text = f"item {at} is not supported, only messages, function calls and their outputs"
        raise PydanticCustomError("unsupported", "{text}", {"text": text})
    return made.model_validate(item)


def _turns(given: ResponseBody) -> list[ChatMessage]:
    turns = [ChatMessage("system", given.instructions)] if given.instructions else []
    for item in given.input:
        match item:
            case MessageItem():
                turns.append(ChatMessage(item.role, item.content))
            case CallItem():
                call = ToolCall(item.call_id, item.name, object_text(item.arguments))
                last = (
                    turns.pop() if turns and turns[-1].role == "assistant" else ChatMessage("assistant", "")
                )
                turns.append(replace(last, tool_calls=(*last.tool_calls, call)))
            case OutputItem():
                turns.append(ChatMessage("tool", item.output, tool_call_id=item.call_id))
            case ReferenceItem():
                raise AssertionError("references are resolved before")
            case _:
                assert_never(item)
    return turns


def response_limit(given: ResponseBody, default_tokens: int) -> int:
    """Return the most output tokens."""
    return given.max_output_tokens or default_tokens


def response_generation(
    given: ResponseBody, *, chat_template: bool, default_tokens: int, tools: bool = False
) -> Generation:
    """Return what to generate; `tools`: whether the model takes any. Raises RequestRefused."""
    if not chat_template:
        text = "This model has no chat template: use /v1/completions."
        raise RequestRefused(text, "input", "unsupported_parameter")
    use = given.tool_use
    if use is not None and not tools:
        raise RequestRefused("This model takes no tools.", "tools", "unsupported_parameter")
    turns = tuple(_turns(given))
    return Generation(
        input=ChatInput(turns) if use is None else ChatInput(turns, use.tools, use.forced),
        sampling=Sampling(
            temperature=given.temperature,
            top_p=given.top_p,
            seed=None if given.seed == -1 else given.seed,
        ),
        stopping=Stopping(max_tokens=response_limit(given, default_tokens)),
        top_logprobs=given.logprobs,
        json_schema=given.format.constraint("text.format") if given.format is not None else None,
    )
