"""Owns chat completions as they go out: the chunks of a stream, and the whole body.

Order of a stream: a role chunk a choice, choice 0 first, before any content; content; a finish chunk
a choice; the usage, if asked for; `[DONE]`. Nothing is said before the first output, so that what
fails before it is answered with a status.

Tool calls are deltas of their own, numbered from 0 in each choice. Texts around them are one content,
joined by line feeds.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import assert_never

from edge.http.wire_json import data_frame
from edge.openai.bodies import (
    DONE,
    Head,
    call_id,
    chat_logprobs,
    failure_frames,
    finish_reason,
    head_of,
    usage_body,
)
from edge.protocol.answer_blocks import Blocks, read_blocks
from edge.protocol.tool_calls import Arguments, CallBegun, CallEnded, Piece, Text, ToolCallReader
from edge.upstream.answers import Answer, check_success, total_usage
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, OutputText, TokenLogprob
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord
from edge.upstream.tools import ToolUse

PREFIX = "chatcmpl-"


class ChatStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(
        self,
        model: ModelRecord,
        choices: int,
        *,
        include_usage: bool,
        logprobs: bool,
        tools: ToolUse | None = None,
    ) -> None:
        self._model = model
        self._choices = choices
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._head: Head | None = None
        self._opened = False
        self._ends: dict[int, Completed] = {}
        self._calls: list[_ChoiceCalls] = []
        if tools is not None:
            self._calls = [_ChoiceCalls(tools.reader(model)) for _ in range(choices)]

    @property
    def ended(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ends) == self._choices

    def render(self, event: Choice) -> bytes:
        """Return the chunks of an event. Raises UpstreamError for a prediction that did not succeed."""
        match event.event:
            case OutputText() as output:
                if not output.text and not (self._logprobs and output.logprobs):
                    return b""
                if self._calls:
                    deltas = self._calls[event.index].take(output.text)
                    return self._deltas(event.index, deltas) if deltas else b""
                return self._open() + self._content(event.index, output.text, output.logprobs)
            case Completed() as end:
                check_success(end)
                self._ends[event.index] = end
                frames, reader = self._open(), None
                if self._calls:
                    reader = self._calls[event.index].reader
                    frames = self._deltas(event.index, self._calls[event.index].finish())
                frames += self._chunk(event.index, {}, finish=finish_reason(end, reader))
                return frames + self._closing() if self.ended else frames
            case Accepted() as accepted:
                if event.index == 0:
                    self._head = head_of(accepted, self._model, PREFIX, "chat.completion.chunk")
                if self._calls:
                    self._calls[event.index].prediction_id = accepted.prediction_id
                return b""
            case _:
                return b""

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the error and the end."""
        return failure_frames(error)

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return that this process stops."""
        return failure_frames(UpstreamError(Reason.DRAINING))

    def last_words(self) -> bytes:
        """Return nothing: `[DONE]` was the last."""
        return b""

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return b"".join(
            self._chunk(index, {"role": "assistant", "content": ""}) for index in range(self._choices)
        )

    def _deltas(self, index: int, deltas: Iterable[dict[str, object]]) -> bytes:
        return self._open() + b"".join(self._chunk(index, delta) for delta in deltas)

    def _content(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> bytes:
        logprobs = chat_logprobs(tokens) if self._logprobs else None
        return self._chunk(index, {"content": text}, logprobs=logprobs)

    def _chunk(
        self,
        index: int,
        delta: dict[str, object],
        *,
        logprobs: dict[str, object] | None = None,
        finish: str | None = None,
    ) -> bytes:
        assert self._head is not None, "the first event of every prediction tells its id"
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._head.with_choices([choice])
        if self._include_usage:
            chunk["usage"] = None
        return data_frame(chunk)

    def _closing(self) -> bytes:
        if not self._include_usage:
            return DONE
        assert self._head is not None
        ends = [self._ends[index] for index in range(self._choices)]
        usage = usage_body(total_usage(ends, samples=self._choices))
        return data_frame(self._head.with_choices([]) | {"usage": usage}) + DONE


class _ChoiceCalls:
    """Turns the text of one choice into deltas."""

    __slots__ = ("_has_text", "_is_after_call", "prediction_id", "reader")

    def __init__(self, reader: ToolCallReader) -> None:
        self.reader = reader
        self.prediction_id = ""
        self._has_text = False
        self._is_after_call = False

    def take(self, text: str) -> list[dict[str, object]]:
        """Return the deltas of more text."""
        return [delta for piece in self.reader.take(text) for delta in self._said(piece)]

    def finish(self) -> list[dict[str, object]]:
        """Return the last deltas."""
        return [delta for piece in self.reader.finish() for delta in self._said(piece)]

    def _said(self, piece: Piece) -> list[dict[str, object]]:
        match piece:
            case Text(text):
                if self._has_text and self._is_after_call:
                    text = "\n" + text
                self._has_text, self._is_after_call = True, False
                return [{"content": text}]
            case CallBegun(index, name):
                self._is_after_call = True
                call = _call(self.prediction_id, index, name, "")
                return [{"tool_calls": [{"index": index, **call}]}]
            case Arguments(index, text):
                return [{"tool_calls": [{"index": index, "function": {"arguments": text}}]}]
            case CallEnded():
                return []
            case _:
                assert_never(piece)


def _call(prediction_id: str, index: int, name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id(prediction_id, index), "type": "function", "function": function}


def chat_body(
    accepted: Sequence[Accepted],
    answers: Sequence[Answer],
    model: ModelRecord,
    *,
    logprobs: bool,
    tools: ToolUse | None = None,
) -> dict[str, object]:
    """Return the whole answer; every one of `answers` has ended well."""
    ends = [answer.end for answer in answers if answer.end is not None]
    choices: list[dict[str, object]] = []
    for index, (answer, end) in enumerate(zip(answers, ends, strict=True)):
        reader = tools.reader(model) if tools is not None else None
        blocks = read_blocks(answer.text, reader)
        choices.append(
            {
                "index": index,
                "message": _message(blocks, accepted[index].prediction_id),
                "logprobs": chat_logprobs(answer.logprobs) if logprobs else None,
                "finish_reason": finish_reason(end, reader),
            }
        )
    body = head_of(accepted[0], model, PREFIX, "chat.completion").with_choices(choices)
    return body | {"usage": usage_body(total_usage(ends, samples=len(ends)))}


def _message(blocks: Blocks, prediction_id: str) -> dict[str, object]:
    text, calls = blocks.text, blocks.calls
    message: dict[str, object] = {"role": "assistant"}
    message |= {"content": text if text or not calls else None, "refusal": None}
    if not calls:
        return message
    told = [_call(prediction_id, call.index, call.name, call.arguments) for call in calls]
    return message | {"tool_calls": told}
