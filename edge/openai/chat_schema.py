"""Owns the body of a chat completion: its fields beside the shared ones, and what is generated from them.

Choices: text parts of a content are joined by line feeds, other parts are refused; `role: developer`
is the system's; a message's `name` is ignored; tools are refused until they are built.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from edge.openai.errors import RequestRefused
from edge.openai.fields import Count, GenerationFields, ResponseFormat, Strict, read_body
from edge.upstream.records import ChatInput, ChatMessage, Generation

MAX_MESSAGES: Final = 1024
TEXT_PARTS: Final = ("text", "input_text", "output_text")

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": ([], ["text"]),
    "audio": (),
    "web_search_options": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}
"""Fields we know and cannot do, and the values of them that ask for nothing."""

NAMES: Final = {
    "json_schema": "response_format",
    "logprobs": "top_logprobs",
    "prompt": "messages",
    "chat": "messages",
    "token_ids": "messages",
}
"""Fields of the service by their names here, where they differ."""


def join_parts(value: object) -> object:
    """Return a content that is a list of text parts as text; anything else as it is."""
    if value is None:
        return ""
    if not isinstance(value, list):
        return value
    texts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
            kind = part.get("type") if isinstance(part, dict) else None
            what = f"parts of type '{kind:.40}' are" if isinstance(kind, str) else "such parts are"
            raise PydanticCustomError("unsupported", "{text}", {"text": f"{what} not supported, only text"})
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_value", "{text}", {"text": "a text part needs a text"})
        texts.append(part["text"])
    return "\n".join(texts)


def _no_calls(value: object) -> object:
    if value:
        raise PydanticCustomError("unsupported", "{text}", {"text": "tool calls are not supported yet"})
    return None


class Message(Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(join_parts)] = ""
    tool_calls: Annotated[None, BeforeValidator(_no_calls)] = None
    function_call: Annotated[None, BeforeValidator(_no_calls)] = None


class ChatBody(GenerationFields):
    """The body."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    """An older name of `max_completion_tokens`, which wins."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None

    @property
    def limit_name(self) -> str:
        """What this caller calls the token limit."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"


def read_chat(body: object) -> ChatBody:
    """Return the body, checked. Raises RequestRefused."""
    chat = read_body(ChatBody, body, HARMLESS)
    if chat.stream_options is not None and not chat.stream:
        raise RequestRefused("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise RequestRefused("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if not any(message.content for message in chat.messages):
        raise RequestRefused("At least one message needs content.", "messages")
    return chat


def chat_generations(chat: ChatBody, *, chat_template: bool, default_tokens: int) -> tuple[Generation, ...]:
    """Return what to generate, one a choice. Raises RequestRefused."""
    if not chat_template:
        text = "This model has no chat template: use /v1/completions."
        raise RequestRefused(text, "messages", "unsupported_parameter")
    given = ChatInput(tuple(ChatMessage(message.role, message.content) for message in chat.messages))
    limit = chat.max_completion_tokens or chat.max_tokens or max(default_tokens, chat.min_tokens or 0)
    return tuple(
        Generation(
            input=given,
            sampling=chat.sampling(choice),
            stopping=chat.stopping(limit, name=chat.limit_name),
            json_schema=chat.response_format.constraint("response_format") if chat.response_format else None,
            top_logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
            priority=chat.priority or 0,
        )
        for choice in range(chat.choices)
    )
