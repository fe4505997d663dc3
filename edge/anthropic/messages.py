"""Owns messages as they go out: the events of a stream, and the whole body.

Order of a stream: `message_start` with the input's tokens, then a `ping`; a block a text or tool call,
in the order they come; `message_delta` with the reason and the final counts; `message_stop`. Nothing is
said before the first output, so that what fails before it is answered with a status; the keep-alives
until then and later are pings too, which every client ignores.

A call whose input broke off streams it as far as it came; in a whole body, which needs an object, it is
`{"INVALID_JSON": "…"}`.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, assert_never

from edge.anthropic.errors import upstream_body
from edge.http.wire_json import data_frame
from edge.protocol.answer_blocks import Block, CallBlock, TextBlock, read_blocks
from edge.protocol.tool_calls import Arguments, CallBegun, CallEnded, Piece, Text, ToolCallReader
from edge.upstream.answers import Answer, check_success
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, FinishReason, OutputText, Started, Usage
from edge.upstream.port import Choice
from edge.upstream.tools import object_of

PING: Final = data_frame({"type": "ping"}, event="ping")


class MessageStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: str, max_tokens: int, reader: ToolCallReader | None = None) -> None:
        """`reader`: of an answer that may call tools."""
        self._model = model
        self._max_tokens = max_tokens
        self._reader = reader
        self._id = ""
        self._input_tokens = 0
        self._opened = False
        self._in_text = False
        self._block = 0
        self.ended = False

    def render(self, event: Choice) -> bytes:
        """Return the events of an event. Raises UpstreamError for one that did not succeed."""
        match event.event:
            case OutputText(text=text):
                if self._reader is not None:
                    return self._said(self._reader.take(text))
                return self._text(text) if text else b""
            case Completed() as end:
                check_success(end)
                self.ended = True
                frames = self._open(end.usage)
                if self._reader is not None:
                    frames += self._said(self._reader.finish())
                return frames + self._closing(end)
            case Started() as started:
                self._input_tokens = started.input_tokens
                return b""
            case Accepted() as accepted:
                self._id = accepted.prediction_id
                return b""
            case _:
                return b""

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the error; nothing may follow it."""
        return data_frame(upstream_body(error) | {"request_id": self._id}, event="error")

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return that this process stops."""
        return self.render_failure(UpstreamError(Reason.DRAINING))

    def last_words(self) -> bytes:
        """Return nothing: `message_stop` was the last."""
        return b""

    def _open(self, usage: Usage | None = None) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        counts = usage or Usage(input_tokens=self._input_tokens)
        message = message_body(self._id, self._model, [], None, usage_body(counts, output_tokens=0))
        return data_frame({"type": "message_start", "message": message}, event="message_start") + PING

    def _text(self, text: str) -> bytes:
        frames = self._open()
        if not self._in_text:
            self._in_text = True
            frames += self._start({"type": "text", "text": ""})
        return frames + self._delta({"type": "text_delta", "text": text})

    def _said(self, pieces: Iterable[Piece]) -> bytes:
        frames = b""
        for piece in pieces:
            match piece:
                case Text(text):
                    frames += self._text(text)
                case CallBegun(index, name):
                    call: dict[str, object] = {"type": "tool_use", "id": _call_id(self._id, index)}
                    call |= {"name": name, "input": {}}
                    frames += self._open() + self._end_text() + self._start(call)
                case Arguments(_, text):
                    frames += self._delta({"type": "input_json_delta", "partial_json": text})
                case CallEnded():
                    frames += self._stop()
                case _:
                    assert_never(piece)
        return frames

    def _start(self, block: dict[str, object]) -> bytes:
        start = {"type": "content_block_start", "index": self._block, "content_block": block}
        return data_frame(start, event="content_block_start")

    def _delta(self, delta: dict[str, object]) -> bytes:
        told = {"type": "content_block_delta", "index": self._block, "delta": delta}
        return data_frame(told, event="content_block_delta")

    def _stop(self) -> bytes:
        stop = {"type": "content_block_stop", "index": self._block}
        self._block += 1
        return data_frame(stop, event="content_block_stop")

    def _end_text(self) -> bytes:
        if not self._in_text:
            return b""
        self._in_text = False
        return self._stop()

    def _closing(self, end: Completed) -> bytes:
        delta = {
            "type": "message_delta",
            "delta": stop_of(end, self._max_tokens, self._reader),
            "usage": usage_body(end.usage),
        }
        return (
            self._end_text()
            + data_frame(delta, event="message_delta")
            + data_frame({"type": "message_stop"}, event="message_stop")
        )


def message_body(
    prediction_id: str,
    model: str,
    blocks: Sequence[Block],
    end: dict[str, object] | None,
    usage: dict[str, object],
) -> dict[str, object]:
    """Return a message; without text and calls it has no content block at all."""
    return {
        "id": f"msg_{prediction_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [_block_body(prediction_id, block) for block in blocks],
        **(end or {"stop_reason": None, "stop_sequence": None}),
        "usage": usage,
    }


def _block_body(prediction_id: str, block: Block) -> dict[str, object]:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case CallBlock():
            identity = _call_id(prediction_id, block.index)
            given = object_of(block.arguments)
            return {"type": "tool_use", "id": identity, "name": block.name, "input": given}
        case _:
            assert_never(block)


def _call_id(prediction_id: str, index: int) -> str:
    """Return the id of a call: the same whenever it is read."""
    return f"toolu_{prediction_id}_{index}"


def whole_body(
    accepted: Accepted,
    answer: Answer,
    model: str,
    max_tokens: int,
    reader: ToolCallReader | None = None,
) -> dict[str, object]:
    """Return the whole answer; `answer` has ended well."""
    assert answer.end is not None, "it has ended"
    blocks = read_blocks(answer.text, reader).all
    usage = usage_body(answer.end.usage)
    end = stop_of(answer.end, max_tokens, reader)
    return message_body(accepted.prediction_id, model, blocks, end, usage)


def stop_of(end: Completed, max_tokens: int, reader: ToolCallReader | None = None) -> dict[str, object]:
    """Return why a prediction that succeeded ended; `reader` has read all of it."""
    reason, sequence = "end_turn", None
    if reader is not None and reader.is_closed:
        reason = "tool_use"
    elif end.finish_reason is FinishReason.LENGTH:
        is_full = end.usage.output_tokens < max_tokens
        reason = "model_context_window_exceeded" if is_full else "max_tokens"
    elif end.matched_stop is not None and end.matched_stop.text is not None:
        reason, sequence = "stop_sequence", end.matched_stop.text
    elif reader is not None and reader.calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence}


def usage_body(usage: Usage, *, output_tokens: int | None = None) -> dict[str, object]:
    """Return exact counts. Tokens from the engine's cache are part of `input_tokens`.

    Anthropic counts cached tokens apart because it prices them apart, and only where the caller set
    a cache breakpoint; here the input is one number, the same as `count_tokens` gives.
    """
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.output_tokens if output_tokens is None else output_tokens,
    }
