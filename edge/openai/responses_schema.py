"""Owns the body of a response, and what is generated from it.

Choices: nothing is stored, so `store: true`, `previous_response_id`, `conversation` and `background`
are refused by name; `instructions` is the system's turn before the input; input items other than
messages of text are refused; `truncation: auto` is taken and does nothing, as we never cut an input.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError

from edge.openai.chat_schema import MAX_MESSAGES, join_parts
from edge.openai.errors import RequestRefused
from edge.openai.fields import MAX_INT64, Count, ResponseFormat, Strict, read_body
from edge.upstream.records import ChatInput, ChatMessage, Generation, Sampling, Stopping

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "store": (False,),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "prompt": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
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
}


class Item(Strict):
    """One message of the input."""

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(join_parts)]


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

    @field_validator("input", mode="plain")
    @classmethod
    def _items(cls, value: object) -> tuple[Item, ...]:
        if isinstance(value, str):
            return (Item(role="user", content=value),)
        if not isinstance(value, list) or not value:
            text = "must be a string or a list of messages, and not empty"
            raise PydanticCustomError("invalid_value", "{text}", {"text": text})
        for at, item in enumerate(value):
            kind = item.get("type", "message") if isinstance(item, dict) else None
            if kind != "message":
                text = f"item {at} is not supported, only messages"
                raise PydanticCustomError("unsupported", "{text}", {"text": text})
        return tuple(Item.model_validate(item) for item in value)

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
    if not any(item.content for item in given.input):
        raise RequestRefused("'input' needs some text.", "input")
    return given


def response_limit(given: ResponseBody, default_tokens: int) -> int:
    """Return the most output tokens."""
    return given.max_output_tokens or default_tokens


def response_generation(given: ResponseBody, *, chat_template: bool, default_tokens: int) -> Generation:
    """Return what to generate. Raises RequestRefused."""
    if not chat_template:
        text = "This model has no chat template: use /v1/completions."
        raise RequestRefused(text, "input", "unsupported_parameter")
    turns = [ChatMessage("system", given.instructions)] if given.instructions else []
    turns += [ChatMessage(item.role, item.content) for item in given.input]
    return Generation(
        input=ChatInput(tuple(turns)),
        sampling=Sampling(
            temperature=given.temperature,
            top_p=given.top_p,
            seed=None if given.seed == -1 else given.seed,
        ),
        stopping=Stopping(max_tokens=response_limit(given, default_tokens)),
        top_logprobs=given.logprobs,
        json_schema=given.format.constraint("text.format") if given.format is not None else None,
    )
