"""Keyword arguments to request messages; and where a broken stream goes on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration

from protos.tailrace.v1 import prediction_pb2 as messages
from protos.tailrace.v1 import prediction_service_pb2 as calls
from tailrace.errors import StreamBroken, TailraceError

STOPPING = frozenset(messages.Stopping.DESCRIPTOR.fields_by_name)
SAMPLING = frozenset(messages.Sampling.DESCRIPTOR.fields_by_name)
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0
PATIENCE_S = 30.0
"""How long a stream is tried again without an event in between."""


def generation(
    *,
    prompt: str | None = None,
    chat: Sequence[Mapping[str, Any]] | None = None,
    token_ids: Sequence[int] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    forced_tool: str | None = None,
    continue_final_message: bool = False,
    **options: Any,
) -> messages.GenerationRequest:
    """Build a request from one input and any field of Sampling, Stopping or GenerationRequest.

    `generation(prompt="Hi", temperature=0, max_tokens=20, stop=["."])`. Chat: `chat=[{"role": "user",
    "content": "Hi"}]`. Raises TypeError for an option that no message has.

    With `chat` also `tools=[{"name": "f", "description": "…", "parameters": {…}}]`, whose parameters are
    a JSON Schema; `forced_tool="f"` makes the output a call of it, `forced_tool=""` of any. A message may
    have `tool_calls=[{"id": "1", "name": "f", "arguments": {…}}]` or `tool_call_id`. Schemas and
    arguments are dicts or JSON text. With `continue_final_message` the output goes on where the last
    message, the assistant's, breaks off.
    """
    request = messages.GenerationRequest()
    if prompt is not None:
        request.prompt = prompt
    if chat is not None:
        request.chat.CopyFrom(_chat(chat, tools or (), forced_tool, continue_final_message))
    elif tools or forced_tool is not None or continue_final_message:
        raise TypeError("tools, forced_tool and continue_final_message go with chat")
    if token_ids is not None:
        request.tokens.token_ids.extend(token_ids)
    sampling = {name: options.pop(name) for name in SAMPLING & options.keys()}
    stopping = {name: options.pop(name) for name in STOPPING & options.keys()}
    try:
        request.MergeFrom(messages.GenerationRequest(**options))
        if sampling:
            request.sampling.CopyFrom(messages.Sampling(**sampling))
        if stopping:
            request.stopping.CopyFrom(messages.Stopping(**stopping))
    except ValueError as error:
        raise TypeError(str(error)) from error
    return request


def _chat(
    turns: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    forced_tool: str | None,
    continue_final_message: bool,
) -> messages.ChatInput:
    try:
        return messages.ChatInput(
            messages=[_turn(turn) for turn in turns],
            tools=[messages.Tool(**_with_text(tool, "parameters")) for tool in tools],
            forced_tool=None if forced_tool is None else messages.ForcedTool(name=forced_tool),
            continue_final_message=continue_final_message,
        )
    except ValueError as error:
        raise TypeError(str(error)) from error


def _turn(turn: Mapping[str, Any]) -> messages.ChatMessage:
    calls = [messages.ToolCall(**_with_text(call, "arguments")) for call in turn.get("tool_calls", ())]
    return messages.ChatMessage(**{**turn, "tool_calls": calls})


def _with_text(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields with the JSON in one of them as text."""
    value = fields.get(name, "")
    return {**fields, name: value if isinstance(value, str) else json.dumps(value)}


def span(value: timedelta | None) -> Duration | None:
    """Return the message for a span."""
    if value is None:
        return None
    message = Duration()
    message.FromTimedelta(value)
    return message


def create_request(
    model: str,
    request: messages.GenerationRequest,
    cancel_after: timedelta | None,
    labels: Mapping[str, str] | None,
) -> calls.CreatePredictionRequest:
    """Return a create that is safe to repeat: it carries an id of its own."""
    return calls.CreatePredictionRequest(
        model=model,
        generation=request,
        request_id=str(uuid.uuid4()),
        cancel_after=span(cancel_after),
        labels=dict(labels or {}),
    )


def predict_request(
    model: str,
    request: messages.GenerationRequest,
    cancel_after: timedelta | None,
    labels: Mapping[str, str] | None,
) -> calls.PredictRequest:
    """Return a Predict that is safe to repeat."""
    return calls.PredictRequest(
        model=model,
        generation=request,
        request_id=str(uuid.uuid4()),
        cancel_after=span(cancel_after),
        labels=dict(labels or {}),
    )


@dataclass(slots=True)
class Cursor:
    """How far a stream has been read, and which call goes on from there. No I/O, no clock."""

    predict: calls.PredictRequest | None = None
    """What opens the stream; None where the prediction exists already."""
    prediction_id: str = ""
    sequence: int = 0
    """Of the last event seen."""
    done: bool = False
    pause_s: float = field(default=FIRST_PAUSE_S)
    waited_s: float = 0.0

    def next_call(self) -> calls.PredictRequest | calls.StreamPredictionRequest:
        """Return the request that goes on after the last event seen."""
        if not self.prediction_id and self.predict is not None:
            return self.predict
        return calls.StreamPredictionRequest(
            id=self.prediction_id, after_sequence=self.sequence, attach=self.predict is not None
        )

    def take(self, event: messages.PredictionEvent) -> None:
        """Note an event that is handed to the caller."""
        if event.WhichOneof("event") == "accepted":
            self.prediction_id = event.accepted.prediction_id
        self.sequence = event.sequence
        self.done = event.WhichOneof("event") == "completed"
        self.pause_s, self.waited_s = FIRST_PAUSE_S, 0.0

    def pause_after(self, error: TailraceError) -> float:
        """Return how many seconds to wait before the next call; raises when there is none to make."""
        if not error.passing:
            raise error
        if self.waited_s >= PATIENCE_S:
            raise StreamBroken(error.code, error.message, error.reason) from error
        pause_s = self.pause_s
        if error.retry_after is not None:
            pause_s = max(pause_s, min(error.retry_after.total_seconds(), LONGEST_PAUSE_S))
        self.waited_s += pause_s
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        return pause_s
