"""Owns the body of a chat completion: its fields beside the shared ones, and what is generated from them.

Choices: text parts of a content are joined by line feeds, other parts are refused; `role: developer`
is the system's; a message's `name` is ignored; the older `functions` and `function_call` are refused.
Tools go neither with `logprobs`, since a call's tokens are no content, nor with a `response_format`,
which would forbid the model to call.
"""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from edge.openai.errors import RequestRefused
from edge.openai.fields import Count, GenerationFields, ResponseFormat, Strict, read_body
from edge.openai.tools_schema import MAX_CALLS, Call, CallId, ChatTools, read_tool_use
from edge.upstream.records import ChatInput, ChatMessage, Generation
from edge.upstream.tools import ToolUse

MAX_MESSAGES: Final = 1024
TEXT_PARTS: Final = ("text", "input_text", "output_text")

HARMLESS: Final[dict[str, tuple[object, ...]]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": ([], ["text"]),
    "audio": (),
    "web_search_options": (),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "echo": (False,),
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
    "forced_tool": "tool_choice",
    "tools[].name": "tools[].function.name",
    "tools[].description": "tools[].function.description",
    "tools[].parameters": "tools[].function.parameters",
    "messages[].tool_calls[].name": "messages[].tool_calls[].function.name",
    "messages[].tool_calls[].arguments": "messages[].tool_calls[].function.arguments",
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


def _no_call(value: object) -> object:
    if value:
        text = "is not supported, only tool_calls"
        raise PydanticCustomError("unsupported", "{text}", {"text": text})
    return None


class Message(Strict):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(join_parts)] = ""
    tool_calls: Annotated[list[Call], Field(max_length=MAX_CALLS)] | None = None
    """Of an assistant; elsewhere ignored."""

    tool_call_id: CallId | None = None
    """Of a tool; elsewhere ignored."""

    function_call: Annotated[None, BeforeValidator(_no_call)] = None

    def turn(self) -> ChatMessage:
        """Return it for the service."""
        if self.role == "assistant" and self.tool_calls:
            calls = tuple(call.tool_call() for call in self.tool_calls)
            return ChatMessage(self.role, self.content, calls)
        if self.role == "tool":
            return ChatMessage(self.role, self.content, tool_call_id=self.tool_call_id or "")
        return ChatMessage(self.role, self.content)


class ChatBody(GenerationFields):
    """The body."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    """An older name of `max_completion_tokens`, which wins."""

    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: ChatTools | None = None
    tool_choice: JsonValue = None
    parallel_tool_calls: bool | None = None
    """False: the answer ends with its first call."""

    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None

    @property
    def tool_use(self) -> ToolUse | None:
        """What it asks of tools. Raises RequestRefused."""
        tools = [tool.function for tool in self.tools or ()]
        place = "tools.[{}].function.name"
        return read_tool_use(tools, self.tool_choice, is_parallel=self.parallel_tool_calls, place=place)

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
    if not any(message.content or message.tool_calls for message in chat.messages):
        raise RequestRefused("At least one message needs content.", "messages")
    _check_continuation(chat)
    _check_tools(chat)
    return chat


def _check_continuation(chat: ChatBody) -> None:
    if not chat.continue_final_message:
        if chat.add_generation_prompt is False:
            text = "'add_generation_prompt' may be false only with 'continue_final_message'."
            raise RequestRefused(text, "add_generation_prompt", "unsupported_parameter")
        return
    name = "continue_final_message"
    if chat.add_generation_prompt:
        raise RequestRefused(f"'{name}' and 'add_generation_prompt' exclude each other.", name)
    last = chat.messages[-1]
    if last.role != "assistant" or last.tool_calls:
        raise RequestRefused(f"'{name}' needs a last message of the assistant, without calls.", name)


def _check_tools(chat: ChatBody) -> None:
    use = chat.tool_use
    if use is None:
        return
    unsupported = "unsupported_parameter"
    if chat.logprobs:
        raise RequestRefused("'logprobs' cannot be combined with tools.", "logprobs", unsupported)
    if chat.response_format is not None and chat.response_format.type != "text":
        text = "'response_format' cannot be combined with tools."
        raise RequestRefused(text, "response_format", unsupported)
    if use.forced is not None and chat.continue_final_message:
        text = "'continue_final_message' cannot be combined with a forced call."
        raise RequestRefused(text, "continue_final_message", unsupported)


def chat_generations(
    chat: ChatBody, *, chat_template: bool, default_tokens: int, tools: bool = False
) -> tuple[Generation, ...]:
    """Return what to generate, one a choice; `tools`: whether the model takes any. Raises RequestRefused."""
    if not chat_template:
        text = "This model has no chat template: use /v1/completions."
        raise RequestRefused(text, "messages", "unsupported_parameter")
    use = chat.tool_use
    if use is not None and not tools:
        raise RequestRefused("This model takes no tools.", "tools", "unsupported_parameter")
    given = ChatInput(
        tuple(message.turn() for message in chat.messages),
        use.tools if use is not None else (),
        use.forced if use is not None else None,
        bool(chat.continue_final_message),
    )
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
