"""Owns messages as they go out: the events of a stream, and the whole body.

Order of a stream: `message_start` with the input's tokens, then a `ping`; if there is text one block
of it; `message_delta` with the reason and the final counts; `message_stop`. Nothing is said before
the first output, so that what fails before it is answered with a status; the keep-alives until then
and later are pings too, which every client ignores.
"""

from datetime import timedelta
from typing import Final

from edge.anthropic.errors import upstream_body
from edge.http.wire_json import data_frame
from edge.upstream.answers import Answer, check_success
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, FinishReason, OutputText, Started, Usage
from edge.upstream.port import Choice

PING: Final = data_frame({"type": "ping"}, event="ping")


class MessageStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: str, max_tokens: int) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._id = ""
        self._input_tokens = 0
        self._opened = False
        self._in_block = False
        self.ended = False

    def render(self, event: Choice) -> bytes:
        """Return the events of an event. Raises UpstreamError for one that did not succeed."""
        match event.event:
            case OutputText(text=text):
                return self._text(text) if text else b""
            case Completed() as end:
                check_success(end)
                self.ended = True
                return self._open(end.usage) + self._closing(end)
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
        message = message_body(self._id, self._model, "", None, usage_body(counts, output_tokens=0))
        return data_frame({"type": "message_start", "message": message}, event="message_start") + PING

    def _text(self, text: str) -> bytes:
        frames = self._open()
        if not self._in_block:
            self._in_block = True
            block = {"type": "text", "text": ""}
            start = {"type": "content_block_start", "index": 0, "content_block": block}
            frames += data_frame(start, event="content_block_start")
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        return frames + data_frame(delta, event="content_block_delta")

    def _closing(self, end: Completed) -> bytes:
        frames = b""
        if self._in_block:
            frames += data_frame({"type": "content_block_stop", "index": 0}, event="content_block_stop")
        delta = {
            "type": "message_delta",
            "delta": stop_of(end, self._max_tokens),
            "usage": usage_body(end.usage),
        }
        return (
            frames
            + data_frame(delta, event="message_delta")
            + data_frame({"type": "message_stop"}, event="message_stop")
        )


def message_body(
    prediction_id: str, model: str, text: str, end: dict[str, object] | None, usage: dict[str, object]
) -> dict[str, object]:
    """Return a message; without text it has no content block at all."""
    return {
        "id": f"msg_{prediction_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": text}] if text else [],
        **(end or {"stop_reason": None, "stop_sequence": None}),
        "usage": usage,
    }


def whole_body(accepted: Accepted, answer: Answer, model: str, max_tokens: int) -> dict[str, object]:
    """Return the whole answer; `answer` has ended well."""
    assert answer.end is not None, "it has ended"
    usage = usage_body(answer.end.usage)
    return message_body(accepted.prediction_id, model, answer.text, stop_of(answer.end, max_tokens), usage)


def stop_of(end: Completed, max_tokens: int) -> dict[str, object]:
    """Return why a prediction that succeeded ended."""
    reason, sequence = "end_turn", None
    if end.finish_reason is FinishReason.LENGTH:
        is_full = end.usage.output_tokens < max_tokens
        reason = "model_context_window_exceeded" if is_full else "max_tokens"
    elif end.matched_stop is not None and end.matched_stop.text is not None:
        reason, sequence = "stop_sequence", end.matched_stop.text
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
