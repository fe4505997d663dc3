"""Continuation: whether and how an interrupted prediction goes on after its log.

Pure rules for the dispatcher, which performs them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from service.domain.events import Entry, FinishReason, Output, Status
from service.domain.lifecycle import Ending
from service.domain.request import GenerationRequest


def logged_text(entries: Iterable[Entry]) -> str:
    """Return the concatenated output of a log."""
    return "".join(entry.event.text for entry in entries if isinstance(entry.event, Output))


def exact_token_ids(entries: Iterable[Entry]) -> tuple[int, ...] | None:
    """Return the ids of a log's output if all are known and cover exactly its text, else None."""
    ids: list[int] = []
    aligned = True
    for entry in entries:
        if isinstance(entry.event, Output):
            if len(entry.event.token_ids) != entry.event.token_count:
                return None
            ids.extend(entry.event.token_ids)
            aligned = entry.event.aligned
    return tuple(ids) if aligned else None


def ending_instead(
    request: GenerationRequest,
    *,
    generated_tokens: int,
    budget_tokens: int,
    stale_claims: int,
    claim_limit: int,
    capabilities: Collection[str],
) -> Ending | None:
    """Return how a prediction must end instead of being continued, or None to continue it.

    `stale_claims` counts the claims since its output last grew: a prompt that kills engines must
    not kill them for ever.
    """
    if stale_claims >= claim_limit:
        text = f"the engine died {stale_claims} times while working on this prediction"
        return Ending(Status.FAILED, FinishReason.ERROR, error=text)
    if generated_tokens and request.constraint and "continue_constraint" not in capabilities:
        text = "the engine was lost in the middle of a constrained output, which it cannot continue"
        return Ending(Status.FAILED, FinishReason.ERROR, error=text)
    if budget_tokens <= generated_tokens:
        return Ending(Status.SUCCEEDED, FinishReason.LENGTH)
    return None
