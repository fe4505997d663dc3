"""What every dialect makes of one prediction's events, byte by byte, as the vectors say.

The vectors are what clients in any language must read. A difference is a change of the wire: look at each
frame before a vector is changed.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from edge.anthropic import errors as anthropic_errors
from edge.anthropic.messages import MessageStream
from edge.http.sse_response import SseRendering
from edge.openai import errors as openai_errors
from edge.openai.chat import ChatStream
from edge.openai.completions import CompletionStream
from edge.openai.completions_schema import read_completion
from edge.openai.generate import TokenStream
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import LOGPROBS, read_response
from edge.protocol.event_ids import Cursor
from edge.replicate.stream import ReplicateStream
from edge.upstream.errors import UpstreamError
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
    TopLogprob,
    Usage,
)
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord, ModelState, Tool
from edge.upstream.tools import ToolUse

VECTORS = Path(__file__).parents[2] / "vectors" / "streams.json"
DOCUMENT: dict[str, Any] = json.loads(VECTORS.read_text("utf-8"))
CASES = [
    pytest.param(case, dialect, id=f"{case['name']}-{dialect}")
    for case in DOCUMENT["cases"]
    for dialect in case["streams"]
]


def model() -> ModelRecord:
    given = DOCUMENT["model"]
    digest, form = given["weights_sha256"], given["tool_format"]
    return ModelRecord(given["name"], ModelState.READY, given["engine"], 2048, True, digest, form)


def tools_of(asked: dict[str, Any]) -> ToolUse | None:
    """Return what is asked of tools: names of functions, which is forced, whether several may be called."""
    if "tools" not in asked:
        return None
    tools = tuple(Tool(name) for name in asked["tools"])
    return ToolUse(tools, asked.get("forced"), asked.get("parallel", True))


def rendering_of(dialect: str, asked: dict[str, Any]) -> SseRendering[Choice]:
    """Return a dialect's rendering for a request that asks for `n`, `logprobs` and usage."""
    n, top, usage = asked.get("n", 1), asked.get("logprobs"), asked.get("include_usage", False)
    limit = {"model": "m", "max_tokens": asked["max_tokens"]}
    tools = tools_of(asked)
    reader = None if tools is None else tools.reader(model())
    match dialect:
        case "chat":
            return ChatStream(model(), n, include_usage=usage, logprobs=top is not None, tools=tools)
        case "completions":
            options = {"include_usage": usage}
            body = {"prompt": "p", "n": n, "logprobs": top, "stream": True, "stream_options": options}
            return CompletionStream(model(), read_completion(body | limit))
        case "responses":
            include = [] if top is None else [LOGPROBS]
            limit["max_output_tokens"] = limit.pop("max_tokens")
            body = {"input": "p", "include": include, "top_logprobs": top}
            return ResponseStream(model().name, read_response(body | limit), reader)
        case "messages":
            return MessageStream(model().name, asked["max_tokens"], reader)
        case "generate":
            return TokenStream()
        case _:
            return OfOne()


class OfOne:
    """Replicate's rendering, which is of one prediction's events."""

    def __init__(self) -> None:
        self._stream = ReplicateStream(0, Cursor(0))
        self.render_failure = self._stream.render_failure
        self.render_leaving = self._stream.render_leaving
        self.last_words = self._stream.last_words

    @property
    def ended(self) -> bool:
        return self._stream.ended

    def render(self, event: Choice) -> bytes:
        return self._stream.render(event.event)


def events_of(case: dict[str, Any]) -> list[Choice]:
    """Return the case's events; each is one entry in the log of its prediction."""
    read: list[Choice] = []
    sequences: dict[int, int] = {}
    for given in case["events"]:
        index = given.get("choice", 0)
        sequences[index] = sequences.get(index, 0) + 1
        read.append(Choice(index, _event(given, sequences[index])))
    return read


def _event(given: dict[str, Any], sequence: int) -> PredictionEvent:
    match given["type"]:
        case "accepted":
            return Accepted(sequence, given["id"], datetime.fromisoformat(given["time"]))
        case "started":
            return Started(sequence, datetime.fromisoformat(given["time"]), given["input_tokens"])
        case "output":
            tokens = tuple(_logprob(token) for token in given.get("logprobs", ()))
            return OutputText(sequence, sequence, given["text"], given.get("tokens", 1), (), tokens)
        case _:
            stop = given.get("matched_stop")
            return Completed(
                sequence,
                datetime.fromisoformat(given["time"]),
                Status(given["status"]),
                FinishReason(given["finish_reason"]),
                None if stop is None else MatchedStop(text=stop),
                Usage(given["input_tokens"], given.get("cached_input_tokens", 0), given["output_tokens"]),
                given.get("error", ""),
            )


def _logprob(given: dict[str, Any]) -> TokenLogprob:
    top = tuple(TopLogprob(t["token"], bytes.fromhex(t["hex"]), t["logprob"]) for t in given["top"])
    return TokenLogprob(given["token"], bytes.fromhex(given["hex"]), given["logprob"], top)


def frames_of(stream: bytes) -> list[str]:
    """Return a stream's frames as text, without the blank line that ends each."""
    *frames, rest = stream.decode().split("\n\n")
    assert not rest, "it ends with a whole frame"
    return frames


def refusal_of(dialect: str, error: UpstreamError) -> dict[str, Any]:
    """Return the answer to an error before the first byte."""
    if dialect == "messages":
        answer = anthropic_errors.upstream_response(error)
    else:
        answer = openai_errors.upstream_response(error)
    return {"status": answer.status_code, "body": json.loads(bytes(answer.body))}


def said(dialect: str, case: dict[str, Any]) -> list[str] | dict[str, Any]:
    """Return the frames, or the refusal where an error came before any."""
    rendering = rendering_of(dialect, case["asked"])
    stream = b""
    for event in events_of(case):
        assert not rendering.ended
        try:
            stream += rendering.render(event)
        except UpstreamError as error:
            if not stream:
                return refusal_of(dialect, error)
            return frames_of(stream + rendering.render_failure(error))
    assert rendering.ended
    return frames_of(stream)


@pytest.mark.parametrize(("case", "dialect"), CASES)
def test_a_stream_is_as_the_vectors_say(case: dict[str, Any], dialect: str) -> None:
    assert said(dialect, case) == case["streams"][dialect]


@pytest.mark.parametrize("case", DOCUMENT["cases"], ids=lambda case: case["name"])
def test_every_dialect_that_can_say_it_is_in_the_vectors(case: dict[str, Any]) -> None:
    dialects = {"chat", "completions", "responses", "messages", "generate", "replicate"}
    if case["asked"].get("n", 1) > 1:
        dialects = {"chat", "completions"}
    if case["asked"].get("logprobs") is not None:
        dialects = {"chat", "completions", "responses"}
    if "tools" in case["asked"]:
        dialects = {"chat", "responses", "messages"}
    assert set(case["streams"]) == dialects
