"""What a caller asks to be generated, and the bounds every field must keep.

Owns `GenerationRequest` and `check`, the one list of bounds (design §10); those of a conversation are
in `chat`. Neutral defaults are ours and equal for every engine. It knows no model: context length and
capabilities are judged by `admission`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from service.domain.chat import ChatMessage, ChatPrompt, ForcedTool, Tool, ToolCall, check_chat
from service.domain.violation import FieldViolation, size

__all__ = [
    "ChatMessage",
    "ChatPrompt",
    "Constraint",
    "FieldViolation",
    "ForcedTool",
    "GenerationRequest",
    "Grammar",
    "JsonSchema",
    "Prompt",
    "Regex",
    "Sampling",
    "Stopping",
    "TextPrompt",
    "TokenPrompt",
    "Tool",
    "ToolCall",
    "check",
    "check_prompt",
    "constraint_field",
]

MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 300
MAX_TOP_LOGPROBS = 20
MAX_CONSTRAINT_BYTES = 16 * 1024
MAX_PROMPT_BYTES = 4 * 1024 * 1024
MAX_TOKEN_ID = 2**31 - 1
MAX_SEED = 2**63 - 1
DEFAULT_MAX_TOKENS = 512
"""Modest, as some engines reserve memory for prompt + max_tokens when a job is admitted."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text, tokenised as it stands: special tokens in it count as such."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, fed as they are; no beginning-of-sequence token is added."""

    token_ids: tuple[int, ...]


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Defaults change nothing about the model's distribution."""

    temperature: float = 1.0
    """0 (greedy) to 2."""
    top_p: float = 1.0
    """0 to 1; 1 is off, 0 keeps the most likely token only."""
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    """0 (off) to 1."""
    typical_p: float = 1.0
    """Above 0 up to 1 (off)."""
    repetition_penalty: float = 1.0
    """Above 0 up to 10; 1 is off."""
    frequency_penalty: float = 0.0
    """-2 to 2."""
    presence_penalty: float = 0.0
    """-2 to 2."""
    seed: int | None = None
    """None draws a fresh one."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, -100 to 100), at most 300."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """When generation ends."""

    max_tokens: int | None = None
    """At least 1; None is 512. More than the context has room for is cut to the room."""
    min_tokens: int = 0
    """Nothing ends the text before so many tokens, but the context."""
    stop: tuple[str, ...] = ()
    """At most 16 strings of 1 to 256 bytes; the match is not part of the output."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Go on past the model's own end-of-turn tokens."""


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The output is JSON valid under this schema (JSON text)."""

    schema: str


@dataclass(frozen=True, slots=True)
class Regex:
    """The output matches this pattern as a whole."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Grammar:
    """The output follows this grammar, in the engine's own notation (GBNF for llama.cpp)."""

    text: str


Constraint = JsonSchema | Regex | Grammar


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Everything that decides the text. Immutable; equal requests are the same request."""

    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    stopping: Stopping = field(default_factory=Stopping)
    constraint: Constraint | None = None
    logprobs: int | None = None
    """None: none. n: each token's own and the n most likely ones', 0 to 20."""
    priority: int = 0
    """-100 to 100; higher is served first, equal ones in order of arrival."""


def _number(
    name: str, value: float, low: float, high: float, *, open_low: bool = False
) -> list[FieldViolation]:
    bad = not math.isfinite(value) or value > high or value < low or (open_low and value == low)
    if not bad:
        return []
    bound = f"above {low:g} and at most {high:g}" if open_low else f"from {low:g} to {high:g}"
    return [FieldViolation(name, f"must be a number {bound}")]


def _ids(name: str, ids: tuple[int, ...], limit: int) -> list[FieldViolation]:
    if len(ids) > limit:
        return [FieldViolation(name, f"must have at most {limit} items")]
    if any(i < 0 or i > MAX_TOKEN_ID for i in ids):
        return [FieldViolation(name, f"must hold token ids from 0 to {MAX_TOKEN_ID}")]
    return []


def check_prompt(prompt: Prompt) -> list[FieldViolation]:
    """Return every field of a prompt out of its bounds."""
    match prompt:
        case TextPrompt(text):
            if not text:
                return [FieldViolation("prompt", "must not be empty")]
            return size("prompt", text, MAX_PROMPT_BYTES)
        case TokenPrompt(token_ids):
            if not token_ids:
                return [FieldViolation("token_ids", "must not be empty")]
            return _ids("token_ids", token_ids, MAX_PROMPT_BYTES)
        case ChatPrompt():
            return check_chat(prompt)


def _check_sampling(s: Sampling) -> list[FieldViolation]:
    found = _number("sampling.temperature", s.temperature, 0, 2)
    found += _number("sampling.top_p", s.top_p, 0, 1)
    found += _number("sampling.top_k", s.top_k, 0, MAX_TOKEN_ID)
    found += _number("sampling.min_p", s.min_p, 0, 1)
    found += _number("sampling.typical_p", s.typical_p, 0, 1, open_low=True)
    found += _number("sampling.repetition_penalty", s.repetition_penalty, 0, 10, open_low=True)
    found += _number("sampling.frequency_penalty", s.frequency_penalty, -2, 2)
    found += _number("sampling.presence_penalty", s.presence_penalty, -2, 2)
    if s.seed is not None and not 0 <= s.seed <= MAX_SEED:
        text = f"must be from 0 to {MAX_SEED}, or absent or -1 for a random one"
        found.append(FieldViolation("sampling.seed", text))
    found += _ids("sampling.logit_bias", tuple(i for i, _ in s.logit_bias), MAX_LOGIT_BIAS)
    for i, bias in s.logit_bias:
        found += _number(f"sampling.logit_bias[{i}]", bias, -100, 100)
    return found


def _check_stopping(s: Stopping) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    if s.max_tokens is not None and s.max_tokens < 1:
        found.append(FieldViolation("stopping.max_tokens", "must be at least 1"))
    if s.min_tokens < 0:
        found.append(FieldViolation("stopping.min_tokens", "must be at least 0"))
    elif s.min_tokens > (s.max_tokens or DEFAULT_MAX_TOKENS):
        found.append(FieldViolation("stopping.min_tokens", "must not be above max_tokens"))
    if len(s.stop) > MAX_STOP_STRINGS:
        found.append(FieldViolation("stopping.stop", f"must have at most {MAX_STOP_STRINGS} items"))
    for i, text in enumerate(s.stop[:MAX_STOP_STRINGS]):
        if not 0 < len(text.encode("utf-8", "surrogatepass")) <= MAX_STOP_BYTES:
            found.append(FieldViolation(f"stopping.stop[{i}]", f"must be 1 to {MAX_STOP_BYTES} bytes"))
    found += _ids("stopping.stop_token_ids", s.stop_token_ids, MAX_STOP_TOKEN_IDS)
    return found


def constraint_field(constraint: Constraint | None) -> str:
    """Return the request field that holds a constraint of this kind."""
    match constraint:
        case JsonSchema():
            return "json_schema"
        case Regex():
            return "regex"
        case Grammar():
            return "grammar"
        case None:
            return "constraint"


def _check_constraint(constraint: Constraint | None) -> list[FieldViolation]:
    match constraint:
        case None:
            return []
        case JsonSchema(text) | Regex(text) | Grammar(text):
            name = constraint_field(constraint)
            if not text.strip():
                return [FieldViolation(name, "must not be empty")]
            return size(name, text, MAX_CONSTRAINT_BYTES)


def check(request: GenerationRequest) -> tuple[FieldViolation, ...]:
    """Return every field out of its bounds; empty means the request is sound in itself.

    Names are paths below `tailrace.v1.GenerationRequest`.
    """
    found = check_prompt(request.prompt) + _check_sampling(request.sampling)
    found += _check_stopping(request.stopping) + _check_constraint(request.constraint)
    if isinstance(request.prompt, ChatPrompt) and request.prompt.forced_tool and request.constraint:
        found.append(FieldViolation("chat.forced_tool", "must be absent with another constraint"))
    if request.logprobs is not None:
        found += _number("logprobs", request.logprobs, 0, MAX_TOP_LOGPROBS)
    found += _number("priority", request.priority, -100, 100)
    return tuple(found)
