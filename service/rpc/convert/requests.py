"""What callers send, as the domain's types.

Refuses what the domain cannot even represent (a missing input, a span out of bounds); the bounds of
a representable request are `service.domain.request.check`. Names in violations are proto paths
below the message that was sent, those of a generation below `tailrace.v1.GenerationRequest`.

Differences between the two forms: `top_k` -1 is 0 and `seed` -1 is none; `logit_bias` and `labels`
are maps, so the domain gets them in the order of their keys.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.domain.errors import InvalidRequest
from service.domain.request import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    FieldViolation,
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
from service.domain.webhook import MAX_CONTEXT_BYTES, Webhook, WebhookEvent
from service.runtime.creation import NewPrediction

MAX_GENERATION_BYTES = 6 * 1024 * 1024
"""A whole GenerationRequest: with its output it must still fit into one message of 8 MiB."""
MAX_REQUEST_ID = 128
MAX_OWNER = 128
MAX_LABELS = 64
MAX_LABEL_BYTES = 64 * 1024
MIN_CANCEL_AFTER = timedelta(seconds=5)
MAX_CANCEL_AFTER = timedelta(hours=24)
MAX_WAIT = timedelta(seconds=60)
DEFAULT_PAGE = 100
WEBHOOK_EVENTS = {
    pb.WEBHOOK_EVENT_START: WebhookEvent.START,
    pb.WEBHOOK_EVENT_OUTPUT: WebhookEvent.OUTPUT,
    pb.WEBHOOK_EVENT_LOGS: WebhookEvent.LOGS,
    pb.WEBHOOK_EVENT_COMPLETED: WebhookEvent.COMPLETED,
}
MAX_PAGE = 1000
_PREDICTION_ID = re.compile(r"[a-z0-9-]{1,64}")

_Owned = (
    spb.GetPredictionRequest
    | spb.ListPredictionsRequest
    | spb.CancelPredictionRequest
    | spb.StreamPredictionRequest
    | spb.ListWebhookDeliveriesRequest
    | spb.GetWebhookSecretRequest
)
"""Requests made for an owner."""


def new_prediction(
    message: spb.PredictRequest | spb.CreatePredictionRequest, *, attached: bool
) -> NewPrediction:
    """Return what a create asks for.

    Raises:
        InvalidRequest: a field cannot be represented; every such field is named.
    """
    found: list[FieldViolation] = []
    if not message.model:
        found.append(FieldViolation("model", "must be given"))
    found += _check_text("request_id", message.request_id, MAX_REQUEST_ID)
    found += _check_text("owner", message.owner, MAX_OWNER) + _check_labels(message.labels)
    ids = {"prediction_id": "", "fresh_id": ""}
    if isinstance(message, spb.CreatePredictionRequest):
        ids = {"prediction_id": message.prediction_id, "fresh_id": message.fresh_id}
        found += _check_ids(ids)
    cancel_after = None
    if message.HasField("cancel_after"):
        cancel_after = _span(message.cancel_after)
        if not MIN_CANCEL_AFTER <= cancel_after <= MAX_CANCEL_AFTER:
            found.append(FieldViolation("cancel_after", "must be from 5 s to 24 h"))
    found += _check_generation(message.generation) + _check_webhook(message.webhook)
    if found:
        raise InvalidRequest(tuple(found))
    return NewPrediction(
        model=message.model,
        request=generation_from(message.generation),
        attached=attached,
        request_id=message.request_id,
        cancel_after=cancel_after,
        labels=tuple(sorted(message.labels.items())),
        owner=message.owner,
        prediction_id=ids["prediction_id"],
        fresh_id=ids["fresh_id"],
        webhook=_webhook_from(message.webhook) if message.HasField("webhook") else None,
    )


def generation_from(message: pb.GenerationRequest) -> GenerationRequest:
    """Return the domain's form of a generation that `_check_generation` has passed."""
    prompt = _prompt_from(message)
    assert prompt is not None, "checked before"
    return GenerationRequest(
        prompt=prompt,
        sampling=_sampling_from(message.sampling),
        stopping=_stopping_from(message.stopping),
        constraint=_constraint_from(message),
        logprobs=message.logprobs.top if message.HasField("logprobs") else None,
        priority=message.priority,
    )


def count_input(message: mpb.CountTokensRequest) -> Prompt:
    """Return the input to count. Raises InvalidRequest when there is none."""
    prompt = _prompt_from(message)
    if prompt is None:
        raise refused("input", "must be given: prompt, chat or tokens")
    return prompt


def wait_from(message: spb.GetPredictionRequest) -> timedelta:
    """Return how long a read may wait, clamped to 0 to 60 s."""
    return min(max(_span(message.wait), timedelta(0)), MAX_WAIT)


def owner_from(message: _Owned) -> str:
    """Return for whom a call is made, "" for everybody. Raises InvalidRequest."""
    if found := _check_text("owner", message.owner, MAX_OWNER):
        raise InvalidRequest(tuple(found))
    return message.owner


def page_size(message: spb.ListPredictionsRequest | spb.ListWebhookDeliveriesRequest) -> int:
    """Return 1 to 1000. Raises InvalidRequest below 0."""
    if message.page_size < 0:
        raise refused("page_size", "must not be negative")
    return min(message.page_size or DEFAULT_PAGE, MAX_PAGE)


def moment_from(message: spb.ListPredictionsRequest, field: str) -> datetime | None:
    """Return the time in `field`, None if absent. Raises InvalidRequest outside years 1 to 9999."""
    if not message.HasField(field):  # type: ignore[arg-type]  # the field's name is a variable here
        return None
    try:
        moment: datetime = getattr(message, field).ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise refused(field, "must be a time in the years 1 to 9999") from None
    return moment


def required(name: str, value: str) -> str:
    """Return `value`. Raises InvalidRequest if it is empty."""
    if not value:
        raise refused(name, "must be given")
    return value


def refused(field: str, description: str) -> InvalidRequest:
    """Return the error that refuses one field."""
    return InvalidRequest((FieldViolation(field, description),))


def _prompt_from(message: pb.GenerationRequest | mpb.CountTokensRequest) -> Prompt | None:
    match message.WhichOneof("input"):
        case "prompt":
            return TextPrompt(message.prompt)
        case "chat":
            return _chat_from(message.chat)
        case "tokens":
            return TokenPrompt(tuple(message.tokens.token_ids))
        case _:
            return None


def _chat_from(message: pb.ChatInput) -> ChatPrompt:
    return ChatPrompt(
        messages=tuple(
            ChatMessage(
                m.role,
                m.content,
                tuple(ToolCall(call.id, call.name, call.arguments) for call in m.tool_calls),
                m.tool_call_id,
            )
            for m in message.messages
        ),
        tools=tuple(Tool(tool.name, tool.description, tool.parameters) for tool in message.tools),
        forced_tool=ForcedTool(message.forced_tool.name) if message.HasField("forced_tool") else None,
        continue_final_message=message.continue_final_message,
    )


def _check_generation(message: pb.GenerationRequest) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    if message.WhichOneof("input") is None:
        found.append(FieldViolation("input", "must be given: prompt, chat or tokens"))
    elif message.ByteSize() > MAX_GENERATION_BYTES:
        found.append(FieldViolation("generation", f"must be at most {MAX_GENERATION_BYTES} bytes in all"))
    if message.sampling.top_k < -1:
        found.append(FieldViolation("sampling.top_k", "must be at least 0, or -1 for off"))
    return found


def _check_text(field: str, text: str, limit: int) -> list[FieldViolation]:
    if len(text) <= limit and text.isascii() and text.isprintable():
        return []
    return [FieldViolation(field, f"must be at most {limit} printable ASCII characters")]


def _check_labels(labels: Mapping[str, str]) -> list[FieldViolation]:
    if len(labels) > MAX_LABELS:
        return [FieldViolation("labels", f"must have at most {MAX_LABELS} keys")]
    if sum(len(key.encode()) + len(value.encode()) for key, value in labels.items()) > MAX_LABEL_BYTES:
        return [FieldViolation("labels", f"must be at most {MAX_LABEL_BYTES} bytes in all")]
    return []


def _check_ids(ids: Mapping[str, str]) -> list[FieldViolation]:
    text = "must be 1 to 64 of a-z, 0-9 and hyphens"
    return [
        FieldViolation(name, text) for name, id_ in ids.items() if id_ and not _PREDICTION_ID.fullmatch(id_)
    ]


def _check_webhook(message: pb.Webhook) -> list[FieldViolation]:
    found: list[FieldViolation] = []
    if any(event not in WEBHOOK_EVENTS for event in message.events):
        allowed = ", ".join(event.value for event in WebhookEvent)
        found.append(FieldViolation("webhook.events", f"must each be one of {allowed}"))
    if len(message.context.encode()) > MAX_CONTEXT_BYTES:
        found.append(FieldViolation("webhook.context", f"must be at most {MAX_CONTEXT_BYTES} bytes"))
    return found


def _webhook_from(message: pb.Webhook) -> Webhook:
    events = dict.fromkeys(WEBHOOK_EVENTS[event] for event in message.events)
    return Webhook(message.url, tuple(events), message.context)


def _sampling_from(message: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        top_k=max(message.top_k, 0),
        min_p=message.min_p,
        typical_p=message.typical_p if message.HasField("typical_p") else 1.0,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else 1.0,
        frequency_penalty=message.frequency_penalty,
        presence_penalty=message.presence_penalty,
        seed=message.seed if message.HasField("seed") and message.seed != -1 else None,
        logit_bias=tuple(sorted(message.logit_bias.items())),
    )


def _stopping_from(message: pb.Stopping) -> Stopping:
    return Stopping(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def _constraint_from(message: pb.GenerationRequest) -> Constraint | None:
    match message.WhichOneof("constraint"):
        case "json_schema":
            return JsonSchema(message.json_schema)
        case "regex":
            return Regex(message.regex)
        case "grammar":
            return Grammar(message.grammar)
        case _:
            return None


def _span(message: Duration) -> timedelta:
    """Return the span, held within a day and a second either way: beyond any bound of ours."""
    seconds = max(-86_401, min(message.seconds, 86_401))
    return timedelta(seconds=seconds, microseconds=message.nanos // 1000)
