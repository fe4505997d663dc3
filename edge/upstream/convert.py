"""Owns proto ↔ edge values: the only module that reads or builds messages of `tailrace.v1`.

Total over the enums of the contract (tested by walking them). An enum value that this edge does not
know is an error of the pairing, not of the caller: `UpstreamError` INTERNAL.
"""

from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from edge.upstream import events, records
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import FinishReason, MatchedStop, PredictionEvent, Status, Usage
from edge.upstream.records import ModelState
from protos.tailrace.v1 import model_service_pb2, prediction_pb2, prediction_service_pb2

MAX_INT32: Final = 2**31 - 1
"""Largest count the contract's int32 fields carry; larger ones mean "as much as there is room"."""

STATUSES: Final = {
    prediction_pb2.STATUS_STARTING: Status.STARTING,
    prediction_pb2.STATUS_PROCESSING: Status.PROCESSING,
    prediction_pb2.STATUS_SUCCEEDED: Status.SUCCEEDED,
    prediction_pb2.STATUS_FAILED: Status.FAILED,
    prediction_pb2.STATUS_CANCELED: Status.CANCELED,
}
FINISH_REASONS: Final = {
    prediction_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    prediction_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    prediction_pb2.FINISH_REASON_CANCELED: FinishReason.CANCELED,
    prediction_pb2.FINISH_REASON_DEADLINE: FinishReason.DEADLINE,
    prediction_pb2.FINISH_REASON_ERROR: FinishReason.ERROR,
}
MODEL_STATES: Final = {
    model_service_pb2.MODEL_STATE_LOADING: ModelState.LOADING,
    model_service_pb2.MODEL_STATE_READY: ModelState.READY,
    model_service_pb2.MODEL_STATE_RESTARTING: ModelState.RESTARTING,
    model_service_pb2.MODEL_STATE_FAILED: ModelState.FAILED,
}

WEBHOOK_EVENTS: Final = {
    prediction_pb2.WEBHOOK_EVENT_START: records.WebhookEvent.START,
    prediction_pb2.WEBHOOK_EVENT_OUTPUT: records.WebhookEvent.OUTPUT,
    prediction_pb2.WEBHOOK_EVENT_LOGS: records.WebhookEvent.LOGS,
    prediction_pb2.WEBHOOK_EVENT_COMPLETED: records.WebhookEvent.COMPLETED,
}

_Wire = TypeVar("_Wire")
_Value = TypeVar("_Value")


def event_from_proto(message: prediction_pb2.PredictionEvent) -> PredictionEvent | None:
    """Return the event, or None for a kind that is newer than this edge."""
    match message.WhichOneof("event"):
        case "output":
            delta = message.output
            return events.OutputText(
                message.first_sequence,
                message.sequence,
                delta.text,
                delta.token_count,
                tuple(delta.token_ids),
                tuple(map(_logprob, delta.logprobs)) if delta.logprobs else (),
            )
        case "accepted":
            accepted = message.accepted
            return events.Accepted(message.sequence, accepted.prediction_id, _moment(accepted.time))
        case "started":
            started = message.started
            return events.Started(message.sequence, _moment(started.time), started.input_tokens)
        case "log":
            return events.LogLine(message.sequence, message.log.text)
        case "completed":
            return _completed(message.sequence, message.completed)
        case _:
            return None


def record_from_proto(message: prediction_pb2.Prediction) -> records.PredictionRecord:
    """Return the prediction as it stands."""
    return records.PredictionRecord(
        id=message.id,
        model=message.model,
        generation=_generation_from_proto(message.request) if message.HasField("request") else None,
        status=_known(STATUSES, message.status),
        output=tuple(message.output),
        created_at=_moment(message.create_time),
        started_at=_moment(message.start_time) if message.HasField("start_time") else None,
        first_output_at=_moment(message.first_output_time) if message.HasField("first_output_time") else None,
        completed_at=_moment(message.complete_time) if message.HasField("complete_time") else None,
        deadline=_moment(message.deadline) if message.HasField("deadline") else None,
        finish_reason=_known(FINISH_REASONS, message.finish_reason) if message.finish_reason else None,
        matched_stop=_matched_stop(message.matched_stop) if message.HasField("matched_stop") else None,
        usage=_usage(message.usage),
        error=message.error,
        labels=tuple(message.labels.items()),
        last_sequence=message.last_sequence,
        data_removed=message.data_removed,
        logs=message.logs,
        webhook=_webhook_from_proto(message.webhook) if message.HasField("webhook") else None,
    )


def page_from_proto(message: prediction_service_pb2.ListPredictionsResponse) -> records.PredictionPage:
    """Return one page of a list."""
    return records.PredictionPage(
        tuple(record_from_proto(prediction) for prediction in message.predictions), message.next_page_token
    )


def model_from_proto(message: model_service_pb2.Model) -> records.ModelRecord:
    """Return one served model."""
    return records.ModelRecord(
        name=message.name,
        state=_known(MODEL_STATES, message.state),
        engine=message.engine,
        context_tokens=message.context_tokens,
        chat_template=message.chat_template,
        weights_sha256=message.weights_sha256,
        tool_format=message.tool_format,
    )


def create_to_proto(
    new: records.NewPrediction, request_id: str, owner: str = ""
) -> prediction_service_pb2.CreatePredictionRequest:
    """Return the request that creates `new` for `owner`, detached and safe to repeat under `request_id`."""
    return prediction_service_pb2.CreatePredictionRequest(
        model=new.model,
        generation=generation_to_proto(new.generation),
        request_id=request_id,
        cancel_after=None if new.cancel_after is None else duration(new.cancel_after),
        labels=dict(new.labels),
        owner=owner,
        prediction_id=new.prediction_id,
        fresh_id=new.fresh_id,
        webhook=None if new.webhook is None else _webhook_to_proto(new.webhook),
    )


def delivery_from_proto(message: prediction_service_pb2.WebhookDelivery) -> records.WebhookDelivery:
    """Return one call of a webhook."""
    return records.WebhookDelivery(
        id=message.id,
        prediction_id=message.prediction_id,
        event=_known(WEBHOOK_EVENTS, message.event),
        attempts=message.attempts,
        delivered=message.delivered,
        given_up=message.given_up,
        last_status=message.last_status,
        last_error=message.last_error,
        created_at=_moment(message.create_time),
        attempted_at=_moment(message.attempt_time) if message.HasField("attempt_time") else None,
        next_at=_moment(message.next_time) if message.HasField("next_time") else None,
    )


def _webhook_from_proto(message: prediction_pb2.Webhook) -> records.Webhook:
    return records.Webhook(message.url, tuple(_known(WEBHOOK_EVENTS, event) for event in message.events))


def _webhook_to_proto(webhook: records.Webhook) -> prediction_pb2.Webhook:
    wire = {event: value for value, event in WEBHOOK_EVENTS.items()}
    return prediction_pb2.Webhook(
        url=webhook.url, events=[wire[event] for event in webhook.events], context=webhook.context
    )


def generation_to_proto(generation: records.Generation) -> prediction_pb2.GenerationRequest:
    """Return `generation` as a message; fields that are None stay absent."""
    sampling, stopping = generation.sampling, generation.stopping
    message = prediction_pb2.GenerationRequest(
        sampling=prediction_pb2.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=min(sampling.top_k or 0, MAX_INT32),
            min_p=sampling.min_p or 0.0,
            repetition_penalty=sampling.repetition_penalty,
            frequency_penalty=sampling.frequency_penalty or 0.0,
            presence_penalty=sampling.presence_penalty or 0.0,
            seed=sampling.seed,
            logit_bias=dict(sampling.logit_bias),
        ),
        stopping=prediction_pb2.Stopping(
            max_tokens=None if stopping.max_tokens is None else min(stopping.max_tokens, MAX_INT32),
            min_tokens=min(stopping.min_tokens or 0, MAX_INT32),
            stop=stopping.stop,
            stop_token_ids=stopping.stop_token_ids,
            ignore_eos=stopping.ignore_eos,
        ),
        priority=generation.priority,
    )
    if generation.top_logprobs is not None:
        message.logprobs.top = generation.top_logprobs
        message.logprobs.SetInParent()
    match generation.input:
        case records.TextInput(text):
            message.prompt = text
        case records.ChatInput() as chat:
            message.chat.CopyFrom(_chat_to_proto(chat))
        case records.TokenInput() as tokens:
            message.tokens.CopyFrom(_tokens_to_proto(tokens))
    if generation.json_schema is not None:
        message.json_schema = generation.json_schema
    return message


def predict_to_proto(
    new: records.NewPrediction, request_id: str, owner: str = "", *, accepted_only: bool = False
) -> prediction_service_pb2.PredictRequest:
    """Return the request that creates `new` for `owner`, attached, and streams it.

    With `accepted_only` its events are read by other means.
    """
    return prediction_service_pb2.PredictRequest(
        model=new.model,
        generation=generation_to_proto(new.generation),
        request_id=request_id,
        cancel_after=None if new.cancel_after is None else duration(new.cancel_after),
        labels=dict(new.labels),
        owner=owner,
        accepted_only=accepted_only,
    )


def count_to_proto(model: str, given: records.ModelInput) -> model_service_pb2.CountTokensRequest:
    """Return the request that counts what `given` feeds to `model`."""
    message = model_service_pb2.CountTokensRequest(model=model)
    match given:
        case records.TextInput(text):
            message.prompt = text
        case records.ChatInput() as chat:
            message.chat.CopyFrom(_chat_to_proto(chat))
        case records.TokenInput() as tokens:
            message.tokens.CopyFrom(_tokens_to_proto(tokens))
    return message


def duration(span: timedelta) -> Duration:
    """Return `span` as a message."""
    message = Duration()
    message.FromTimedelta(span)
    return message


def timestamp(moment: datetime) -> Timestamp:
    """Return an aware `moment` as a message."""
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def _generation_from_proto(message: prediction_pb2.GenerationRequest) -> records.Generation | None:
    model_input: records.ModelInput
    match message.WhichOneof("input"):
        case "prompt":
            model_input = records.TextInput(message.prompt)
        case "chat":
            model_input = _chat_from_proto(message.chat)
        case "tokens":
            model_input = records.TokenInput(tuple(message.tokens.token_ids))
        case _:
            return None
    sampling, stopping = message.sampling, message.stopping
    has_penalty = sampling.HasField("repetition_penalty")
    return records.Generation(
        model_input,
        records.Sampling(
            temperature=sampling.temperature if sampling.HasField("temperature") else None,
            top_p=sampling.top_p if sampling.HasField("top_p") else None,
            top_k=sampling.top_k or None,
            min_p=sampling.min_p or None,
            repetition_penalty=sampling.repetition_penalty if has_penalty else None,
            frequency_penalty=sampling.frequency_penalty or None,
            presence_penalty=sampling.presence_penalty or None,
            seed=sampling.seed if sampling.HasField("seed") else None,
            logit_bias=tuple(sorted(sampling.logit_bias.items())),
        ),
        records.Stopping(
            max_tokens=stopping.max_tokens if stopping.HasField("max_tokens") else None,
            min_tokens=stopping.min_tokens or None,
            stop=tuple(stopping.stop),
            stop_token_ids=tuple(stopping.stop_token_ids),
            ignore_eos=stopping.ignore_eos,
        ),
        message.json_schema if message.WhichOneof("constraint") == "json_schema" else None,
        message.logprobs.top if message.HasField("logprobs") else None,
        message.priority,
    )


def _chat_from_proto(message: prediction_pb2.ChatInput) -> records.ChatInput:
    return records.ChatInput(
        tuple(_turn_from_proto(turn) for turn in message.messages),
        tuple(records.Tool(tool.name, tool.description, tool.parameters) for tool in message.tools),
        message.forced_tool.name if message.HasField("forced_tool") else None,
        message.continue_final_message,
    )


def _turn_from_proto(message: prediction_pb2.ChatMessage) -> records.ChatMessage:
    calls = tuple(records.ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls)
    return records.ChatMessage(message.role, message.content, calls, message.tool_call_id)


def _chat_to_proto(chat: records.ChatInput) -> prediction_pb2.ChatInput:
    forced = chat.forced_tool
    return prediction_pb2.ChatInput(
        messages=map(_turn_to_proto, chat.messages),
        tools=(
            prediction_pb2.Tool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in chat.tools
        ),
        forced_tool=None if forced is None else prediction_pb2.ForcedTool(name=forced),
        continue_final_message=chat.continue_final_message,
    )


def _turn_to_proto(turn: records.ChatMessage) -> prediction_pb2.ChatMessage:
    return prediction_pb2.ChatMessage(
        role=turn.role,
        content=turn.content,
        tool_calls=(
            prediction_pb2.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
            for call in turn.tool_calls
        ),
        tool_call_id=turn.tool_call_id,
    )


def _tokens_to_proto(tokens: records.TokenInput) -> prediction_pb2.TokenInput:
    return prediction_pb2.TokenInput(token_ids=tokens.token_ids)


def _logprob(message: prediction_pb2.TokenLogprob) -> events.TokenLogprob:
    top = tuple(events.TopLogprob(item.token, item.data, item.logprob) for item in message.top)
    return events.TokenLogprob(message.token, message.data, message.logprob, top)


def _completed(sequence: int, message: prediction_pb2.Completed) -> events.Completed:
    return events.Completed(
        sequence=sequence,
        time=_moment(message.time),
        status=_known(STATUSES, message.status),
        finish_reason=_known(FINISH_REASONS, message.finish_reason),
        matched_stop=_matched_stop(message.matched_stop) if message.HasField("matched_stop") else None,
        usage=_usage(message.usage),
        error=message.error,
    )


def _matched_stop(message: prediction_pb2.MatchedStop) -> MatchedStop | None:
    match message.WhichOneof("stop"):
        case "text":
            return MatchedStop(text=message.text)
        case "token_id":
            return MatchedStop(token_id=message.token_id)
        case _:
            return None


def _usage(message: prediction_pb2.Usage) -> Usage:
    return Usage(message.input_tokens, message.cached_input_tokens, message.output_tokens)


def _moment(message: Timestamp) -> datetime:
    return message.ToDatetime(tzinfo=UTC)


def _known(table: dict[_Wire, _Value], wire: _Wire) -> _Value:
    try:
        return table[wire]
    except KeyError:
        raise UpstreamError(Reason.INTERNAL) from None
