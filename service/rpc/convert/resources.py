"""What callers get: records, requests and models as messages."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from service.domain.events import FinishReason, Status, Usage
from service.domain.lifecycle import Prediction
from service.domain.public_text import MAX_ERROR_BYTES, public_text
from service.domain.request import (
    ChatPrompt,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Regex,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from service.domain.webhook import Webhook, WebhookEvent
from service.domain.webhook_delivery import Delivery
from service.runtime.cursor import OutputSoFar
from service.runtime.models import ModelState, ServedModel

STATUS = {
    Status.STARTING: pb.STATUS_STARTING,
    Status.PROCESSING: pb.STATUS_PROCESSING,
    Status.SUCCEEDED: pb.STATUS_SUCCEEDED,
    Status.FAILED: pb.STATUS_FAILED,
    Status.CANCELED: pb.STATUS_CANCELED,
}
FINISH_REASON = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELED: pb.FINISH_REASON_CANCELED,
    FinishReason.DEADLINE: pb.FINISH_REASON_DEADLINE,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
MODEL_STATE = {
    ModelState.LOADING: mpb.MODEL_STATE_LOADING,
    ModelState.READY: mpb.MODEL_STATE_READY,
    ModelState.RESTARTING: mpb.MODEL_STATE_RESTARTING,
    ModelState.FAILED: mpb.MODEL_STATE_FAILED,
}
WEBHOOK_EVENT = {
    WebhookEvent.START: pb.WEBHOOK_EVENT_START,
    WebhookEvent.OUTPUT: pb.WEBHOOK_EVENT_OUTPUT,
    WebhookEvent.LOGS: pb.WEBHOOK_EVENT_LOGS,
    WebhookEvent.COMPLETED: pb.WEBHOOK_EVENT_COMPLETED,
}


def generation_to(request: GenerationRequest) -> pb.GenerationRequest:
    """Return the message that `generation_from` reads back as an equal request."""
    message = pb.GenerationRequest(
        sampling=_sampling_to(request.sampling),
        stopping=pb.Stopping(
            max_tokens=request.stopping.max_tokens,
            min_tokens=request.stopping.min_tokens,
            stop=request.stopping.stop,
            stop_token_ids=request.stopping.stop_token_ids,
            ignore_eos=request.stopping.ignore_eos,
        ),
        priority=request.priority,
    )
    match request.prompt:
        case TextPrompt(text):
            message.prompt = text
        case ChatPrompt():
            message.chat.CopyFrom(_chat_to(request.prompt))
        case TokenPrompt(token_ids):
            message.tokens.CopyFrom(pb.TokenInput(token_ids=token_ids))
    match request.constraint:
        case JsonSchema(schema):
            message.json_schema = schema
        case Regex(pattern):
            message.regex = pattern
        case Grammar(text):
            message.grammar = text
        case None:
            pass
    if request.logprobs is not None:
        message.logprobs.CopyFrom(pb.LogprobOptions(top=request.logprobs))
    return message


def _chat_to(chat: ChatPrompt) -> pb.ChatInput:
    forced = chat.forced_tool
    return pb.ChatInput(
        messages=(
            pb.ChatMessage(
                role=m.role,
                content=m.content,
                tool_calls=(
                    pb.ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in m.tool_calls
                ),
                tool_call_id=m.tool_call_id,
            )
            for m in chat.messages
        ),
        tools=(
            pb.Tool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in chat.tools
        ),
        forced_tool=None if forced is None else pb.ForcedTool(name=forced.name),
        continue_final_message=chat.continue_final_message,
    )


def _sampling_to(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        repetition_penalty=sampling.repetition_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        seed=sampling.seed,
        logit_bias=dict(sampling.logit_bias),
    )


def prediction_to(
    record: Prediction, output: OutputSoFar | None = None, *, omit_request: bool = False
) -> pb.Prediction:
    """Return the record as a resource, with `output` where it is given."""
    message = pb.Prediction(
        id=record.id,
        model=record.model,
        request=None if record.request is None or omit_request else generation_to(record.request),
        status=STATUS[record.status],
        create_time=moment_to(record.created_at),
        start_time=_optional_moment(record.started_at),
        first_output_time=_optional_moment(record.first_output_at),
        complete_time=_optional_moment(record.completed_at),
        deadline=_optional_moment(record.deadline),
        finish_reason=(
            FINISH_REASON[record.finish_reason] if record.finish_reason else pb.FINISH_REASON_UNSPECIFIED
        ),
        matched_stop=matched_stop_to(record.matched_stop),
        usage=usage_to(record.usage),
        error=public_text(record.error, MAX_ERROR_BYTES),
        attached=record.attached,
        labels=dict(record.labels),
        last_sequence=record.last_sequence,
        data_removed=record.data_removed,
        epoch=record.epoch,
        owner=record.owner,
        webhook=_webhook_to(record.webhook),
    )
    if output is not None:
        message.output.extend(output.pieces)
        message.logs = output.logs
    return message


def _webhook_to(webhook: Webhook | None) -> pb.Webhook | None:
    """Return the webhook without its context."""
    if webhook is None:
        return None
    return pb.Webhook(url=webhook.url, events=[WEBHOOK_EVENT[event] for event in webhook.events])


def delivery_to(delivery: Delivery) -> spb.WebhookDelivery:
    """Return one call of a webhook."""
    return spb.WebhookDelivery(
        id=delivery.id,
        prediction_id=delivery.prediction_id,
        event=WEBHOOK_EVENT[delivery.event],
        attempts=delivery.attempts,
        delivered=delivery.delivered,
        given_up=delivery.given_up,
        last_status=delivery.last_status,
        last_error=delivery.last_error,
        create_time=moment_to(delivery.created_at),
        attempt_time=_optional_moment(delivery.attempted_at),
        next_time=_optional_moment(delivery.next_at),
    )


def usage_to(usage: Usage) -> pb.Usage:
    """Return the counts."""
    return pb.Usage(
        input_tokens=usage.input_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        output_tokens=usage.output_tokens,
    )


def matched_stop_to(stop: str | int | None) -> pb.MatchedStop | None:
    """Return what ended the text, None if it was the model itself."""
    if stop is None:
        return None
    return pb.MatchedStop(text=stop) if isinstance(stop, str) else pb.MatchedStop(token_id=stop)


def moment_to(moment: datetime) -> Timestamp:
    """Return an aware time as a Timestamp."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def _optional_moment(moment: datetime | None) -> Timestamp | None:
    return None if moment is None else moment_to(moment)


def model_to(model: ServedModel) -> mpb.Model:
    """Return the model with what is known of it."""
    message = mpb.Model(
        name=model.name,
        state=MODEL_STATE[model.state],
        load=mpb.Load(running=model.running, waiting=model.waiting),
    )
    if (info := model.info) is not None:
        message.engine = info.engine
        message.context_tokens = info.context_tokens
        message.vocabulary_size = info.vocabulary_size
        message.chat_template = info.chat_template
        message.capabilities.extend(sorted(info.request_fields))
        message.load.slots = info.slots
        message.weights_sha256 = info.weights_sha256
        message.attention = info.attention
        message.tool_format = info.tool_format
    return message
