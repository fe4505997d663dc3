"""The body of a webhook's calls: Replicate's prediction object, as the edge would answer with it.

Tools and calls are no part of it: Replicate's input has none, and of a prediction made through another
API the object shows prompt and system prompt alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from protos.replicate_object import InputTexts, PredictionFacts, encode, prediction_object, read_context
from service.domain.events import Entry, Log, Output
from service.domain.lifecycle import Prediction
from service.domain.public_text import MAX_ERROR_BYTES, public_text
from service.domain.request import ChatPrompt, GenerationRequest, JsonSchema, TextPrompt, TokenPrompt


class ReplicateBody:
    """A `WebhookBody`."""

    def render(self, record: Prediction, entries: Sequence[Entry]) -> bytes:
        """See `WebhookBody`."""
        events = [entry.event for entry in entries]
        facts = PredictionFacts(
            id=record.id,
            model=record.model,
            status=record.status.value,
            created_at=record.created_at,
            texts=None if record.request is None else _texts(record.request),
            output=tuple(event.text for event in events if isinstance(event, Output)),
            logs="\n".join(event.text for event in events if isinstance(event, Log)),
            error=public_text(record.error, MAX_ERROR_BYTES),
            started_at=record.started_at,
            first_output_at=record.first_output_at,
            completed_at=record.completed_at,
            deadline=record.deadline,
            input_tokens=record.usage.input_tokens,
            output_tokens=record.usage.output_tokens,
            labels=record.labels,
            data_removed=record.data_removed,
        )
        context = read_context(record.webhook.context) if record.webhook is not None else {}
        return encode(prediction_object(facts, context))


def _texts(request: GenerationRequest) -> InputTexts:
    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None
    match request.prompt:
        case TextPrompt(text):
            prompt = text
        case ChatPrompt(turns):
            messages = tuple((turn.role, turn.content) for turn in turns)
        case TokenPrompt():
            pass
    schema = request.constraint.schema if isinstance(request.constraint, JsonSchema) else None
    return InputTexts(prompt, messages, request.stopping.stop, schema)
