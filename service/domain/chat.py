"""A conversation for the model's chat template, with tools, and the bounds of its fields.

Names in violations are as in `service.domain.request`: a message's begin with `messages[i]`, what
stands beside the messages with `chat`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.domain.json_text import MAX_NESTING, try_object
from service.domain.violation import FieldViolation, size

MAX_MESSAGES = 1024
MAX_CONTENT_BYTES = 4 * 1024 * 1024
MAX_TOOLS = 128
MAX_TOOL_BYTES = 16 * 1024
"""Of a description, and of the schema of parameters."""
MAX_TOOLS_BYTES = 256 * 1024
MAX_CALLS = 64
MAX_ARGUMENTS_BYTES = 256 * 1024
MAX_ALL_ARGUMENTS_BYTES = 1024 * 1024
"""All of a chat's. They are read on the event loop, which a larger text would hold up."""
MAX_CALL_ID = 128
ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_JSON_OBJECT = f"must be a JSON object nested at most {MAX_NESTING} deep"


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask its caller to call."""

    name: str
    description: str = ""
    parameters: str = ""
    """The JSON Schema of its arguments, an object, as text; empty: it takes none."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn."""

    id: str
    name: str
    arguments: str = ""
    """A JSON object as text; empty: none."""


@dataclass(frozen=True, slots=True)
class ForcedTool:
    """The next turn is a call."""

    name: str = ""
    """Of which tool; empty: of any."""


@dataclass(frozen=True, slots=True, repr=False)
class ChatMessage:
    """One turn. Special tokens in its texts are plain text to the model."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant."""
    tool_call_id: str = ""
    """Of a tool: the call that this is the result of."""

    def __repr__(self) -> str:
        """Show the later fields only where they are set: digests of creates are made of this."""
        more = [("tool_calls", self.tool_calls), ("tool_call_id", self.tool_call_id)]
        return _shown("ChatMessage", [("role", self.role), ("content", self.content)], more)


@dataclass(frozen=True, slots=True, repr=False)
class ChatPrompt:
    """Messages, rendered by the model's own chat template."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...] = ()
    forced_tool: ForcedTool | None = None
    """None: the model decides. Else the output is one call as a JSON object (`service.domain.tools`)."""
    continue_final_message: bool = False
    """The last message is the assistant's, and the output goes on where it breaks off."""

    def __repr__(self) -> str:
        """Show the later fields only where they are set: digests of creates are made of this."""
        more = [
            ("tools", self.tools),
            ("forced_tool", self.forced_tool),
            ("continue_final_message", self.continue_final_message),
        ]
        return _shown("ChatPrompt", [("messages", self.messages)], more)


def _shown(kind: str, always: Sequence[tuple[str, object]], more: Sequence[tuple[str, object]]) -> str:
    fields = [*always, *((name, value) for name, value in more if value)]
    return f"{kind}({', '.join(f'{name}={value!r}' for name, value in fields)})"


def check_chat(chat: ChatPrompt) -> list[FieldViolation]:
    """Return every field out of its bounds."""
    found = _check_messages(chat.messages) + _check_tools(chat.tools)
    if chat.forced_tool is not None:
        found += _check_forced(chat.forced_tool, chat)
    if chat.continue_final_message:
        found += _check_unfinished(chat)
    return found


def _check_messages(messages: tuple[ChatMessage, ...]) -> list[FieldViolation]:
    if not messages:
        return [FieldViolation("messages", "must not be empty")]
    if len(messages) > MAX_MESSAGES:
        return [FieldViolation("messages", f"must have at most {MAX_MESSAGES} items")]
    if _bytes(call.arguments for m in messages for call in m.tool_calls) > MAX_ALL_ARGUMENTS_BYTES:
        text = f"must have arguments of at most {MAX_ALL_ARGUMENTS_BYTES} bytes in all calls together"
        return [FieldViolation("messages", text)]
    found: list[FieldViolation] = []
    for i, message in enumerate(messages):
        found += _check_message(f"messages[{i}]", message)
    if not any(message.content or message.tool_calls for message in messages):
        found.append(FieldViolation("messages", "must have at least one message with content or calls"))
    return found


def _check_message(path: str, message: ChatMessage) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    if message.role not in ROLES:
        found.append(FieldViolation(f"{path}.role", f"must be one of {', '.join(sorted(ROLES))}"))
    found += size(f"{path}.content", message.content, MAX_CONTENT_BYTES)
    if message.tool_calls and message.role != "assistant":
        found.append(FieldViolation(f"{path}.tool_calls", "must be absent but with the role assistant"))
    if len(message.tool_calls) > MAX_CALLS:
        found.append(FieldViolation(f"{path}.tool_calls", f"must have at most {MAX_CALLS} items"))
    for i, call in enumerate(message.tool_calls[:MAX_CALLS]):
        found += _check_call(f"{path}.tool_calls[{i}]", call)
    if message.tool_call_id and message.role != "tool":
        found.append(FieldViolation(f"{path}.tool_call_id", "must be absent but with the role tool"))
    return found + _check_id(f"{path}.tool_call_id", message.tool_call_id)


def _check_call(path: str, call: ToolCall) -> list[FieldViolation]:
    found = _check_id(f"{path}.id", call.id) + _check_name(f"{path}.name", call.name)
    if too_large := size(f"{path}.arguments", call.arguments, MAX_ARGUMENTS_BYTES):
        return found + too_large
    if call.arguments and try_object(call.arguments) is None:
        found.append(FieldViolation(f"{path}.arguments", _JSON_OBJECT))
    return found


def _check_tools(tools: tuple[Tool, ...]) -> list[FieldViolation]:
    if len(tools) > MAX_TOOLS:
        return [FieldViolation("chat.tools", f"must have at most {MAX_TOOLS} items")]
    texts = (text for tool in tools for text in (tool.name, tool.description, tool.parameters))
    if _bytes(texts) > MAX_TOOLS_BYTES:
        return [FieldViolation("chat.tools", f"must be at most {MAX_TOOLS_BYTES} bytes in all")]
    found: list[FieldViolation] = []
    names: set[str] = set()
    for i, tool in enumerate(tools):
        path = f"chat.tools[{i}]"
        found += _check_name(f"{path}.name", tool.name)
        if tool.name in names:
            found.append(FieldViolation(f"{path}.name", "must not be the name of another tool"))
        names.add(tool.name)
        found += size(f"{path}.description", tool.description, MAX_TOOL_BYTES)
        found += _check_parameters(f"{path}.parameters", tool.parameters)
    return found


def _check_parameters(path: str, parameters: str) -> list[FieldViolation]:
    if not parameters:
        return []
    if too_large := size(path, parameters, MAX_TOOL_BYTES):
        return too_large
    schema = try_object(parameters)
    if schema is None:
        return [FieldViolation(path, _JSON_OBJECT)]
    if schema.get("type", "object") != "object":
        return [FieldViolation(path, "must be the schema of an object")]
    return []


def _check_forced(forced: ForcedTool, chat: ChatPrompt) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    if not chat.tools:
        found.append(FieldViolation("chat.forced_tool", "needs tools"))
    elif forced.name and forced.name not in {tool.name for tool in chat.tools}:
        found.append(FieldViolation("chat.forced_tool.name", "must be the name of one of the tools"))
    if chat.continue_final_message:
        found.append(FieldViolation("chat.forced_tool", "must be absent with continue_final_message"))
    return found


def _check_unfinished(chat: ChatPrompt) -> list[FieldViolation]:
    last = chat.messages[-1] if chat.messages else None
    if last is None or last.role != "assistant" or not last.content or last.tool_calls:
        text = "needs a last message with the role assistant, with content and without calls"
        return [FieldViolation("chat.continue_final_message", text)]
    return []


def _check_name(path: str, name: str) -> list[FieldViolation]:
    if _NAME.fullmatch(name):
        return []
    return [FieldViolation(path, "must be 1 to 64 of a-z, A-Z, 0-9, underscores and hyphens")]


def _check_id(path: str, text: str) -> list[FieldViolation]:
    if len(text) <= MAX_CALL_ID and text.isascii() and text.isprintable():
        return []
    return [FieldViolation(path, f"must be at most {MAX_CALL_ID} printable ASCII characters")]


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
