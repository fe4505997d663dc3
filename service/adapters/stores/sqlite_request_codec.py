"""The stored form of a request: a MessagePack map by field names.

Owns what is inside the request column. Older rows can be read as long as new fields have defaults;
a removed field is skipped. Any other change needs a schema migration.
"""

from __future__ import annotations

from typing import assert_never

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from service.domain.request import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    ForcedTool,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Prompt,
    Regex,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)


class _TextPrompt(Struct, frozen=True, gc=False, tag="text"):
    text: str


class _TokenPrompt(Struct, frozen=True, gc=False, tag="tokens"):
    token_ids: tuple[int, ...]


class _ChatPrompt(Struct, frozen=True, gc=False, tag="chat", omit_defaults=True):
    messages: tuple[tuple[str, str], ...]
    calls: dict[int, tuple[ToolCall, ...]] = {}
    """By the number of the message that has them."""
    results: dict[int, str] = {}
    """`tool_call_id` by the number of the message that has one."""
    tools: tuple[Tool, ...] = ()
    forced_tool: ForcedTool | None = None
    continue_final_message: bool = False


class _JsonSchema(Struct, frozen=True, gc=False, tag="json_schema"):
    schema: str


class _Regex(Struct, frozen=True, gc=False, tag="regex"):
    pattern: str


class _Grammar(Struct, frozen=True, gc=False, tag="grammar"):
    text: str


_StoredPrompt = _TextPrompt | _TokenPrompt | _ChatPrompt
_StoredConstraint = _JsonSchema | _Regex | _Grammar


class _Request(Struct, frozen=True, gc=False):
    prompt: _StoredPrompt
    sampling: Sampling
    stopping: Stopping
    constraint: _StoredConstraint | None = None
    logprobs: int | None = None
    priority: int = 0


_encode = Encoder().encode
_decode_request = Decoder(_Request).decode


def encode_request(request: GenerationRequest) -> bytes:
    """Return a request's payload."""
    return _encode(
        _Request(
            prompt=_from_prompt(request.prompt),
            sampling=request.sampling,
            stopping=request.stopping,
            constraint=_from_constraint(request.constraint),
            logprobs=request.logprobs,
            priority=request.priority,
        )
    )


def decode_request(payload: bytes) -> GenerationRequest:
    """Return the request of a payload."""
    row = _decode_request(payload)
    return GenerationRequest(
        prompt=_to_prompt(row.prompt),
        sampling=row.sampling,
        stopping=row.stopping,
        constraint=_to_constraint(row.constraint),
        logprobs=row.logprobs,
        priority=row.priority,
    )


def _from_prompt(prompt: Prompt) -> _StoredPrompt:
    match prompt:
        case TextPrompt(text):
            return _TextPrompt(text)
        case TokenPrompt(token_ids):
            return _TokenPrompt(token_ids)
        case ChatPrompt(messages):
            return _ChatPrompt(
                tuple([(message.role, message.content) for message in messages]),
                {i: message.tool_calls for i, message in enumerate(messages) if message.tool_calls},
                {i: message.tool_call_id for i, message in enumerate(messages) if message.tool_call_id},
                prompt.tools,
                prompt.forced_tool,
                prompt.continue_final_message,
            )
        case _:
            assert_never(prompt)


def _to_prompt(row: _StoredPrompt) -> Prompt:
    match row:
        case _TextPrompt():
            return TextPrompt(row.text)
        case _TokenPrompt():
            return TokenPrompt(row.token_ids)
        case _ChatPrompt():
            messages = [
                ChatMessage(role, content, row.calls.get(i, ()), row.results.get(i, ""))
                for i, (role, content) in enumerate(row.messages)
            ]
            return ChatPrompt(tuple(messages), row.tools, row.forced_tool, row.continue_final_message)
        case _:
            assert_never(row)


def _from_constraint(constraint: Constraint | None) -> _StoredConstraint | None:
    match constraint:
        case None:
            return None
        case JsonSchema(schema):
            return _JsonSchema(schema)
        case Regex(pattern):
            return _Regex(pattern)
        case Grammar(text):
            return _Grammar(text)
        case _:
            assert_never(constraint)


def _to_constraint(row: _StoredConstraint | None) -> Constraint | None:
    match row:
        case None:
            return None
        case _JsonSchema():
            return JsonSchema(row.schema)
        case _Regex():
            return Regex(row.pattern)
        case _Grammar():
            return Grammar(row.text)
        case _:
            assert_never(row)
