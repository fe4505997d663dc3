"""Owns responses as they go out: the typed events of a stream, and the response object.

Order of a stream: created and in_progress; the message and its part; text deltas; the part and the
message when done; completed, or incomplete where the token limit ended it. A failure is an `error`
event and then failed. There is no `[DONE]`. Nothing is said before the first output, so that what
fails before it is answered with a status.

Log probabilities stand with the delta that completes their tokens' text, and in whole at the end. Those of
tokens without text wait for the next delta.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from edge.http.wire_json import data_frame
from edge.openai.bodies import token_logprobs
from edge.openai.errors import KINDS
from edge.openai.responses_schema import ResponseBody
from edge.upstream.answers import Answer, check_success
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, FinishReason, OutputText, TokenLogprob, Usage
from edge.upstream.port import Choice

_UNKNOWN: Final[dict[str, object]] = {"usage": None, "output": []}


class ResponseStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: str, given: ResponseBody) -> None:
        self._model = model
        self._given = given
        self._accepted: Accepted | None = None
        self._text = ""
        self._logprobs: list[TokenLogprob] = []
        self._untold = 0
        self._opened = False
        self._in_item = False
        self._number = -1
        self.ended = False

    def render(self, event: Choice) -> bytes:
        """Return the events of an event. Raises UpstreamError for one that did not succeed."""
        match event.event:
            case OutputText(text=text, logprobs=logprobs):
                self._logprobs += logprobs
                return self._delta(text) if text else b""
            case Completed() as end:
                check_success(end)
                self.ended = True
                return self._open() + self._closing(end)
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

    def _delta(self, text: str) -> bytes:
        frames = self._open()
        if not self._in_item:
            self._in_item = True
            item = message_item(self._identity, None)
            frames += self._event("response.output_item.added", output_index=0, item=item)
            frames += self._part_event("response.content_part.added", part=text_part(""))
        self._text += text
        logprobs = token_logprobs(self._logprobs[self._untold :])
        self._untold = len(self._logprobs)
        return frames + self._part_event("response.output_text.delta", delta=text, logprobs=logprobs)

    def _closing(self, end: Completed) -> bytes:
        frames = b""
        if self._in_item:
            item = message_item(self._identity, self._text, self._logprobs, is_cut=is_cut(end))
            logprobs = token_logprobs(self._logprobs)
            frames += self._part_event("response.output_text.done", text=self._text, logprobs=logprobs)
            frames += self._part_event(
                "response.content_part.done", part=text_part(self._text, self._logprobs)
            )
            frames += self._event("response.output_item.done", output_index=0, item=item)
        kind = "response.incomplete" if is_cut(end) else "response.completed"
        members = end_members(self._identity, self._text, self._logprobs, end)
        return frames + self._event(kind, response=self._object(members))

    @property
    def _identity(self) -> str:
        return self._accepted.prediction_id if self._accepted is not None else ""

    def _object(self, members: dict[str, object]) -> dict[str, object]:
        assert self._accepted is not None, "the first event of every prediction tells its id"
        return response_object(self._accepted, self._model, self._given, members)

    def _part_event(self, kind: str, **members: object) -> bytes:
        place = {"item_id": f"msg_{self._identity}", "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **members)

    def _event(self, kind: str, **members: object) -> bytes:
        self._number += 1
        return data_frame({"type": kind, "sequence_number": self._number, **members}, event=kind)


def response_body(accepted: Accepted, answer: Answer, model: str, given: ResponseBody) -> dict[str, object]:
    """Return the whole answer; `answer` has ended well."""
    assert answer.end is not None, "it has ended"
    members = end_members(accepted.prediction_id, answer.text, answer.logprobs, answer.end)
    return response_object(accepted, model, given, members)


def response_object(
    accepted: Accepted, model: str, given: ResponseBody, members: dict[str, object]
) -> dict[str, object]:
    """Return a response with `members` over what every one has."""
    form = given.format
    return {
        "id": f"resp_{accepted.prediction_id}",
        "object": "response",
        "created_at": int(accepted.time.timestamp()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": given.instructions,
        "max_output_tokens": given.max_output_tokens,
        "metadata": given.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": 1.0 if given.temperature is None else given.temperature,
        "text": {"format": {"type": "text"} if form is None else _form_members(form.type, form.name)},
        "tool_choice": "none",
        "tools": [],
        "top_logprobs": given.top_logprobs or 0,
        "top_p": 1.0 if given.top_p is None else given.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": given.user,
        **members,
    }


def _form_members(kind: str, name: str | None) -> dict[str, object]:
    if kind == "json_schema":
        return {"type": kind, "name": name or "output", "schema": {}}
    return {"type": kind}


def end_members(
    identity: str, text: str, logprobs: Sequence[TokenLogprob], end: Completed
) -> dict[str, object]:
    """Return the members that its end gives a response."""
    cut = is_cut(end)
    return {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [message_item(identity, text, logprobs, is_cut=cut)] if text else [],
        "usage": _usage(end.usage),
    }


def is_cut(end: Completed) -> bool:
    """Return whether the token limit ended the output."""
    return end.finish_reason is FinishReason.LENGTH


def message_item(
    identity: str, text: str | None, logprobs: Sequence[TokenLogprob] = (), *, is_cut: bool = False
) -> dict[str, object]:
    """Return the one item of an output; `text` is None at its beginning."""
    return {
        "type": "message",
        "id": f"msg_{identity}",
        "status": "in_progress" if text is None else "incomplete" if is_cut else "completed",
        "role": "assistant",
        "content": [] if text is None else [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, object]:
    """Return a part of text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": token_logprobs(logprobs)}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_input_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
