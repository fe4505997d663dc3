"""Owns predictions as answers: their whole output, and their ends as errors.

For dialects whose answer *is* the output: there a prediction that did not succeed is an error of the
request, while for others it is data.
"""

from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import (
    Completed,
    FinishReason,
    OutputText,
    PredictionEvent,
    Started,
    Status,
    TokenLogprob,
    Usage,
)
from edge.upstream.metadata import Caller
from edge.upstream.port import UpstreamModels
from edge.upstream.records import ModelRecord


class Answer:
    """One prediction's output so far; whole once `end` is set."""

    __slots__ = ("end", "input_tokens", "logprobs", "text")

    def __init__(self) -> None:
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.input_tokens = 0
        self.end: Completed | None = None

    def take(self, event: PredictionEvent) -> None:
        """Add an event. Raises UpstreamError for an end that is none of a success."""
        match event:
            case OutputText():
                self.text += event.text
                self.logprobs += event.logprobs
            case Started():
                self.input_tokens = event.input_tokens
            case Completed():
                check_success(event)
                self.end = event
            case _:
                pass


def check_success(end: Completed) -> None:
    """Raise UpstreamError unless the prediction succeeded."""
    if end.status is Status.SUCCEEDED:
        return
    if end.status is Status.FAILED:
        raise UpstreamError(Reason.GENERATION_FAILED, end.error)
    if end.finish_reason is FinishReason.DEADLINE:
        raise UpstreamError(Reason.GENERATION_DEADLINE)
    raise UpstreamError(Reason.GENERATION_CANCELED)


def total_usage(ends: list[Completed], *, samples: int = 1) -> Usage:
    """Return the counts of all `ends`; of `samples` in a row that share a prompt it counts once."""
    firsts = ends[::samples]
    return Usage(
        input_tokens=sum(end.usage.input_tokens for end in firsts),
        cached_input_tokens=sum(end.usage.cached_input_tokens for end in firsts),
        output_tokens=sum(end.usage.output_tokens for end in ends),
    )


async def served_model(name: str, models: UpstreamModels, caller: Caller) -> ModelRecord:
    """Return the model that `name` means: `owner/name`, or `name` alone where that is unique.

    Raises UpstreamError MODEL_NOT_FOUND, or ENGINE_NOT_READY while nothing is known of it.
    """
    try:
        found = await models.get(name, caller=caller)
    except UpstreamError as error:
        if error.reason is not Reason.MODEL_NOT_FOUND:
            raise
        same = [m for m in await models.list(caller=caller) if m.name.partition("/")[2] == name]
        if len(same) != 1:
            raise
        found = same[0]
    if not found.is_known:
        raise UpstreamError(Reason.ENGINE_NOT_READY, "The model is still loading.")
    return found
