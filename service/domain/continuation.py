"""Continuation: whether and how an interrupted prediction goes on after its log.

Pure rules for the dispatcher, which performs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from service.domain.events import Entry, FinishReason, Output, Status
from service.domain.lifecycle import Ending
from service.domain.request import GenerationRequest
from service.domain.tools import effective_constraint

REPLAY_LIMIT_TOKENS = 2048
"""At some tens of tokens a second, a reader would wait for minutes above it."""


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
    *,
    generated_tokens: int,
    budget_tokens: int,
    stale_claims: int,
    claim_limit: int,
) -> Ending | None:
    """Return how a prediction must end instead of being continued, or None to continue it.

    `stale_claims` counts the claims since its output last grew: a prompt that kills engines must
    not kill them for ever.
    """
    if stale_claims >= claim_limit:
        text = f"the engine died {stale_claims} times while working on this prediction"
        return Ending(Status.FAILED, FinishReason.ERROR, error=text)
    if budget_tokens <= generated_tokens:
        return Ending(Status.SUCCEEDED, FinishReason.LENGTH)
    return None


def worth_replaying(request: GenerationRequest, generated_tokens: int) -> bool:
    """Return whether an interrupted prediction is to be generated again from its start.

    That gives exactly the text of an uninterrupted run, where feeding the log as a prompt only
    gives one that fits; it takes as long as generating did. So it is for those who can tell:
    greedy and seeded sampling, up to a limit, and constrained output, which no engine can go on
    with in its middle.
    """
    if effective_constraint(request) is not None:
        return True
    repeatable = request.sampling.temperature == 0 or request.sampling.seed is not None
    return repeatable and generated_tokens <= REPLAY_LIMIT_TOKENS


def with_seed(request: GenerationRequest, prediction_id: str) -> GenerationRequest:
    """Return the request with a seed: its own, or one that the prediction's id stands for.

    So an interrupted prediction can be generated again, whatever was asked. Ids are random, and so
    is the seed.
    """
    if request.sampling.seed is not None:
        return request
    digest = hashlib.sha256(prediction_id.encode()).digest()
    seed = int.from_bytes(digest[:4], "big")
    return replace(request, sampling=replace(request.sampling, seed=seed))
