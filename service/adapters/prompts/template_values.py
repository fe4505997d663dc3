"""Messages and tools as templates expect them: Hugging Face's convention.

A tool is `{"type": "function", "function": {"name", "description", "parameters"}}`, a call of an
assistant `{"id", "type": "function", "function": {"name", "arguments"}}` with arguments that are a
mapping, a tool's message has `tool_call_id`, and `name` where the call is known. Keys without a value
are absent: templates ask whether they are defined.

Every text of the caller, keys of its JSON included, goes through a `Clean` on its way.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from service.domain.chat import ChatMessage, Tool, ToolCall
from service.domain.json_text import try_object
from service.ports.engine import PromptError


class Clean(Protocol):
    """Make a caller's text safe for a template."""

    def text(self, content: str, /) -> str:
        """Return a content, name, description or id."""
        ...

    def word(self, content: str, /) -> str:
        """Return a key or a text of JSON."""
        ...


_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_SHORT = 9
_NO_PARAMETERS = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class TemplateHabits:
    """What one template wants otherwise than others."""

    knows_developer: bool = True
    """Else the role is `system`."""
    short_ids: bool = False
    """Call ids must be 9 letters and digits."""
    content_beside_calls: str | None = ""
    """The content of an assistant that called and said nothing."""


def message_values(
    messages: Sequence[ChatMessage], clean: Clean, habits: TemplateHabits
) -> list[dict[str, object]]:
    """Return the messages. Raises PromptError for arguments that are no JSON object."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    found: list[dict[str, object]] = []
    for message in messages:
        role = message.role
        if role == "developer" and not habits.knows_developer:
            role = "system"
        value: dict[str, object] = {"role": role, "content": clean.text(message.content)}
        if message.tool_calls:
            value["content"] = clean.text(message.content) if message.content else habits.content_beside_calls
            value["tool_calls"] = [_call(call, clean, habits) for call in message.tool_calls]
        if message.tool_call_id:
            value["tool_call_id"] = clean.text(_id(message.tool_call_id, habits))
            if message.tool_call_id in names:
                value["name"] = clean.text(names[message.tool_call_id])
        found.append(value)
    return found


def tool_values(tools: Sequence[Tool], clean: Clean) -> list[dict[str, object]] | None:
    """Return the tools, None without any. Raises PromptError for parameters that are no JSON object."""
    return [_tool(tool, clean) for tool in tools] or None


def _tool(tool: Tool, clean: Clean) -> dict[str, object]:
    parameters = _object(tool.parameters) if tool.parameters else _NO_PARAMETERS
    function = {
        "name": clean.text(tool.name),
        "description": clean.text(tool.description),
        "parameters": _cleaned(parameters, clean),
    }
    return {"type": "function", "function": function}


def _call(call: ToolCall, clean: Clean, habits: TemplateHabits) -> dict[str, object]:
    arguments = _object(call.arguments) if call.arguments else {}
    function = {"name": clean.text(call.name), "arguments": _cleaned(arguments, clean)}
    return {"id": clean.text(_id(call.id, habits)), "type": "function", "function": function}


def _id(text: str, habits: TemplateHabits) -> str:
    """Return the id; a short one that stands for it where only such are taken."""
    if not habits.short_ids or _SHORT_ID.fullmatch(text):
        return text
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT]


def _object(text: str) -> dict[str, object]:
    found = try_object(text)
    if found is None:
        raise PromptError("a tool's parameters or a call's arguments are not a JSON object")
    return found


def _cleaned(value: object, clean: Clean) -> object:
    if isinstance(value, str):
        return clean.word(value)
    if isinstance(value, list):
        return [_cleaned(item, clean) for item in value]
    if isinstance(value, dict):
        return {clean.word(key): _cleaned(item, clean) for key, item in value.items()}
    return value
