"""Owns what a resumable stream of this API leaves with its prediction, and the rendering made anew of it.

A rendering needs what its request said beside the input. Most of that is the prediction's own request;
the rest is kept in labels, which go with the data.
"""

from collections.abc import Callable
from typing import Final

import orjson

from edge.http.sse_response import SseRendering
from edge.openai.chat import ChatStream
from edge.openai.chat_schema import ChatBody
from edge.openai.completions import CompletionStream
from edge.openai.completions_schema import CompletionBody, read_completion
from edge.openai.errors import RequestRefused
from edge.openai.generate import TokenStream
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import read_response
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord, PredictionRecord, TextInput, TokenInput
from edge.upstream.tools import one_call_labels, reader_of, tool_use_of

Labels = tuple[tuple[str, str], ...]
Renew = Callable[[PredictionRecord, ModelRecord], SseRendering[Choice]]
"""Makes a rendering of a prediction whose data is there."""

USAGE_LABEL: Final = "openai.include_usage"
ECHO_LABEL: Final = "openai.echo"
BODY_LABEL: Final = "data.openai.body"
"""The body of a response without its input, as JSON: the response repeats much of it."""

MAX_BODY_BYTES: Final = 48 * 1024


def chat_labels(body: ChatBody) -> Labels:
    """Return what `chat_stream` needs beside the prediction's request."""
    return (*_flag(USAGE_LABEL, body.include_usage), *one_call_labels(body.tool_use))


def chat_stream(record: PredictionRecord, model: ModelRecord) -> SseRendering[Choice]:
    """Return the rendering of a chat completion."""
    labels = dict(record.labels)
    has_logprobs = record.generation is not None and record.generation.top_logprobs is not None
    tools = tool_use_of(record) if reader_of(record, model) is not None else None
    return ChatStream(model, 1, include_usage=USAGE_LABEL in labels, logprobs=has_logprobs, tools=tools)


def completion_labels(body: CompletionBody) -> Labels:
    """Return what `completion_stream` needs beside the prediction's request."""
    return (*_flag(USAGE_LABEL, body.include_usage), *_flag(ECHO_LABEL, bool(body.echo)))


def completion_stream(record: PredictionRecord, model: ModelRecord) -> SseRendering[Choice]:
    """Return the rendering of a completion."""
    labels, generation = dict(record.labels), record.generation
    assert generation is not None, "its data is there"
    prompt: str | list[int] = "-"
    match generation.input:
        case TextInput(text):
            prompt = text
        case TokenInput(token_ids):
            prompt = list(token_ids)
        case _:
            pass
    body = {
        "model": model.name,
        "prompt": prompt,
        "logprobs": generation.top_logprobs,
        "echo": ECHO_LABEL in labels,
        "stream": True,
        "stream_options": {"include_usage": USAGE_LABEL in labels},
    }
    return CompletionStream(model, read_completion(body))


def response_labels(body: object) -> Labels:
    """Return what `response_stream` needs beside the prediction's request; `body` is one that was read.

    Raises RequestRefused.
    """
    assert isinstance(body, dict), "it was read"
    text = orjson.dumps({name: value for name, value in body.items() if name != "input"})
    if len(text) > MAX_BODY_BYTES:
        told = f"With 'X-Resumable' all but 'input' may have {MAX_BODY_BYTES} bytes at most."
        raise RequestRefused(told, "X-Resumable")
    return ((BODY_LABEL, text.decode()),)


def response_stream(record: PredictionRecord, model: ModelRecord) -> SseRendering[Choice]:
    """Return the rendering of a response."""
    body = orjson.loads(dict(record.labels)[BODY_LABEL])
    return ResponseStream(model.name, read_response(body | {"input": "-"}), reader_of(record, model))


def token_stream(record: PredictionRecord, model: ModelRecord) -> SseRendering[Choice]:
    """Return the rendering of `/generate`."""
    return TokenStream()


def _flag(label: str, is_set: bool) -> Labels:
    return ((label, "1"),) if is_set else ()
