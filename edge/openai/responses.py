"""Owns the events of a response's stream.

Order of a stream: created and in_progress; the output's items one after another, a message with its
part, or a function call; completed, or incomplete where the token limit ended it. A failure is an
`error` event and then failed. There is no `[DONE]`. Nothing is said before the first output, so that
what fails before it is answered with a status.

Log probabilities stand with the delta that completes their tokens' text, and in whole at the end. Those of
tokens without text wait for the next delta. With tools there are none.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, assert_never

from edge.http.wire_json import data_frame
from edge.openai.bodies import token_logprobs
from edge.openai.errors import KINDS
from edge.openai.response_bodies import (
    call_item,
    end_members,
    is_cut,
    message_item,
    response_object,
    text_part,
)
from edge.openai.responses_schema import ResponseBody
from edge.protocol.answer_blocks import Blocks, CallBlock, TextBlock
from edge.protocol.tool_calls import Arguments, CallBegun, CallEnded, Piece, Text, ToolCallReader
from edge.upstream.answers import check_success
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, OutputText, TokenLogprob
from edge.upstream.port import Choice

_UNKNOWN: Final[dict[str, object]] = {"usage": None, "output": []}


class ResponseStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: str, given: ResponseBody, reader: ToolCallReader | None = None) -> None:
        """`reader`: of an answer that may call tools."""
        self._model = model
        self._given = given
        self._reader = reader
        self._accepted: Accepted | None = None
        self._blocks = Blocks()
        self._logprobs: list[TokenLogprob] = []
        self._untold = 0
        self._opened = False
        self._in_message = False
        self._number = -1
        self.ended = False

    def render(self, event: Choice) -> bytes:
        """Return the events of an event. Raises UpstreamError for one that did not succeed."""
        match event.event:
            case OutputText(text=text, logprobs=logprobs):
                self._logprobs += logprobs
                if self._reader is not None:
                    return self._said(self._reader.take(text))
                return self._said((Text(text),)) if text else b""
            case Completed() as end:
                check_success(end)
                self.ended = True
                frames = self._open()
                if self._reader is not None:
                    frames += self._said(self._reader.finish())
                return frames + self._closing(end)
            case Accepted() as accepted:
                self._accepted = accepted
                return b""
            case _:
                return b""

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the error in every form that some client looks for."""
        _, code = KINDS[error.reason]
        fault = {"code": code, "message": error.message, "param": None}
        told = self._event("error", **fault, error={"type": KINDS[error.reason][0], **fault})
        status = {"status": "failed", "error": {"code": code, "message": error.message}}
        return told + self._event("response.failed", response=self._object(_UNKNOWN | status))

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return that this process stops."""
        return self.render_failure(UpstreamError(Reason.DRAINING))

    def last_words(self) -> bytes:
        """Return nothing."""
        return b""

    def _open(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        begun = self._object(_UNKNOWN | {"status": "in_progress"})
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def _said(self, pieces: Sequence[Piece]) -> bytes:
        frames = self._open() if pieces else b""
        for piece in pieces:
            if self._in_message and not isinstance(piece, Text):
                frames += self._message_done()
            self._blocks.take((piece,))
            match piece:
                case Text(text):
                    if not self._in_message:
                        self._in_message = True
                        frames += self._item_event("added", message_item(self._identity, self._at, None))
                        frames += self._part_event("content_part.added", part=text_part(""))
                    logprobs = token_logprobs(self._logprobs[self._untold :])
                    self._untold = len(self._logprobs)
                    frames += self._part_event("output_text.delta", delta=text, logprobs=logprobs)
                case CallBegun():
                    frames += self._item_event("added", call_item(self._identity, self._call, "in_progress"))
                case Arguments(_, text):
                    frames += self._call_event("delta", delta=text)
                case CallEnded():
                    frames += self._call_done()
                case _:
                    assert_never(piece)
        return frames

    @property
    def _at(self) -> int:
        """Place of the item that is being said."""
        return len(self._blocks.all) - 1

    @property
    def _call(self) -> CallBlock:
        call = self._blocks.all[-1]
        assert isinstance(call, CallBlock), "a call is begun"
        return call

    def _message_done(self, *, cut: bool = False) -> bytes:
        self._in_message = False
        block = self._blocks.all[-1]
        assert isinstance(block, TextBlock), "a message is begun"
        item = message_item(self._identity, self._at, block.text, self._logprobs, is_cut=cut)
        logprobs = token_logprobs(self._logprobs)
        return (
            self._part_event("output_text.done", text=block.text, logprobs=logprobs)
            + self._part_event("content_part.done", part=text_part(block.text, self._logprobs))
            + self._item_event("done", item)
        )

    def _call_done(self) -> bytes:
        call = self._call
        done = self._call_event("done", arguments=call.arguments, name=call.name)
        return done + self._item_event("done", call_item(self._identity, call))

    def _closing(self, end: Completed) -> bytes:
        cut = is_cut(end, self._reader)
        frames = self._message_done(cut=cut) if self._in_message else b""
        kind = "response.incomplete" if cut else "response.completed"
        members = end_members(self._identity, self._blocks, self._logprobs, end, is_cut=cut)
        return frames + self._event(kind, response=self._object(members))

    @property
    def _identity(self) -> str:
        return self._accepted.prediction_id if self._accepted is not None else ""

    def _object(self, members: dict[str, object]) -> dict[str, object]:
        assert self._accepted is not None, "the first event of every prediction tells its id"
        return response_object(self._accepted, self._model, self._given, members)

    def _item_event(self, what: str, item: dict[str, object]) -> bytes:
        return self._event(f"response.output_item.{what}", output_index=self._at, item=item)

    def _part_event(self, what: str, **members: object) -> bytes:
        identity = message_item(self._identity, self._at, None)["id"]
        place = {"item_id": identity, "output_index": self._at, "content_index": 0}
        return self._event(f"response.{what}", **place, **members)

    def _call_event(self, what: str, **members: object) -> bytes:
        identity = call_item(self._identity, self._call)["id"]
        place = {"item_id": identity, "output_index": self._at}
        return self._event(f"response.function_call_arguments.{what}", **place, **members)

    def _event(self, kind: str, **members: object) -> bytes:
        self._number += 1
        return data_frame({"type": kind, "sequence_number": self._number, **members}, event=kind)
