"""Admission: whether a model can take a request, and how long a queue makes its callers wait.

Pure: everything it judges by arrives as an argument. Bounds of single fields are `request.check`.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from service.domain.errors import ContextExceeded, InvalidRequest, QueueFull, UnsupportedByEngine
from service.domain.request import (
    DEFAULT_MAX_TOKENS,
    ChatPrompt,
    FieldViolation,
    GenerationRequest,
    Prompt,
    check,
    constraint_field,
)

MIN_RETRY = timedelta(seconds=1)
MAX_RETRY = timedelta(seconds=60)


TOOLS = "chat.tools"
"""The field that depends on the model's template; see `EngineInfo.tool_format`."""
_NEEDS = {"chat.forced_tool": "json_schema"}
"""Fields that are named themselves, but rest on the engine's having another."""


def needed_capabilities(request: GenerationRequest) -> tuple[str, ...]:
    """Return the request fields that not every engine or model has, by proto path."""
    s, t = request.sampling, request.stopping
    used = {
        "sampling.typical_p": s.typical_p != 1.0,
        "sampling.logit_bias": bool(s.logit_bias),
        "stopping.min_tokens": t.min_tokens > 0,
        "stopping.stop_token_ids": bool(t.stop_token_ids),
        "stopping.ignore_eos": t.ignore_eos,
        constraint_field(request.constraint): request.constraint is not None,
        "logprobs": request.logprobs is not None,
        **_needed_for_chat(request.prompt),
    }
    return tuple(name for name, is_used in used.items() if is_used)


def _needed_for_chat(prompt: Prompt) -> dict[str, bool]:
    if not isinstance(prompt, ChatPrompt):
        return {}
    with_calls = any(message.tool_calls for message in prompt.messages)
    return {
        TOOLS: bool(prompt.tools) or with_calls,
        "chat.forced_tool": prompt.forced_tool is not None,
    }


def check_counted(prompt: Prompt, *, engine: str, capabilities: Collection[str], chat_template: bool) -> None:
    """Refuse a chat whose tokens cannot be counted; other prompts are the engine's to judge.

    Raises:
        InvalidRequest, UnsupportedByEngine.
    """
    if isinstance(prompt, ChatPrompt):
        request = GenerationRequest(prompt)
        check_request(request, engine=engine, capabilities=capabilities, chat_template=chat_template)


def check_request(
    request: GenerationRequest, *, engine: str, capabilities: Collection[str], chat_template: bool
) -> None:
    """Refuse what no engine could take, or this one cannot.

    Raises:
        InvalidRequest: fields out of bounds.
        UnsupportedByEngine: fields the engine lacks, each named.
    """
    if violations := check(request):
        raise InvalidRequest(violations)
    lacking = [
        FieldViolation(name, _why_not(name, engine))
        for name in needed_capabilities(request)
        if _NEEDS.get(name, name) not in capabilities
    ]
    if isinstance(request.prompt, ChatPrompt) and not chat_template:
        lacking.append(FieldViolation("chat", "needs a model with a chat template; send `prompt` instead"))
    if lacking:
        raise UnsupportedByEngine(tuple(lacking))


def _why_not(name: str, engine: str) -> str:
    if name == TOOLS:
        return "needs a model whose chat template knows tools, in a format that can be read"
    return f"is not supported by the {engine} engine"


def token_budget(request: GenerationRequest, *, input_tokens: int, context_tokens: int) -> int:
    """Return how many tokens may be generated: what was asked, cut to the context's room.

    Raises:
        ContextExceeded: the prompt leaves no room for one token.
    """
    room = context_tokens - input_tokens
    if room < 1:
        what = f"has {input_tokens} tokens; the model's context is {context_tokens}, and one must be left"
        raise ContextExceeded((FieldViolation("prompt", what),))
    return min(request.stopping.max_tokens or DEFAULT_MAX_TOKENS, room)


def check_queue(*, waiting: int, limit: int, slots: int, mean_run: timedelta) -> None:
    """Refuse when the queue is full, with the time in which a place should come free.

    Raises:
        QueueFull: `waiting` has reached `limit`.
    """
    if waiting < limit:
        return
    a_place = mean_run / max(slots, 1)
    retry = min(max(a_place, MIN_RETRY), MAX_RETRY)
    raise QueueFull(f"the queue is full ({limit} predictions wait); try again later", retry_after=retry)
