"""Events of predictions as the edge sees them, for tests of what dialects make of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from edge.upstream.events import (
    Accepted,
    Completed,
    FinishReason,
    MatchedStop,
    OutputText,
    PredictionEvent,
    Started,
    Status,
    TokenLogprob,
    Usage,
)
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord, ModelState

NOW = datetime(2026, 11, 30, 18, 47, 8, tzinfo=UTC)
ID = "a" * 26
LLM = ModelRecord("acme/llm", ModelState.READY, "scripted", 2048, True, "ab" * 32)
LLM_WITH_TOOLS = replace(LLM, tool_format="hermes")


def output(text: str, sequence: int = 3, logprobs: tuple[TokenLogprob, ...] = ()) -> OutputText:
    """Return some output."""
    return OutputText(sequence, sequence, text, 1, (), logprobs)


def completed(
    status: Status = Status.SUCCEEDED,
    reason: FinishReason = FinishReason.STOP,
    stop: str | None = None,
    error: str = "",
    usage: Usage | None = None,
) -> Completed:
    """Return an end."""
    matched = None if stop is None else MatchedStop(text=stop)
    return Completed(9, NOW, status, reason, matched, usage or Usage(7, 2, 3), error)


def run(*texts: str, end: Completed | None = None, index: int = 0) -> list[Choice]:
    """Return a whole prediction that says `texts`."""
    events: list[PredictionEvent] = [Accepted(1, f"{index}" + ID[1:], NOW), Started(2, NOW, 7)]
    events += [output(text, number) for number, text in enumerate(texts, 3)]
    return [Choice(index, event) for event in (*events, end or completed())]
