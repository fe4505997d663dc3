"""Owns chat completions as they go out: the chunks of a stream, and the whole body.

Order of a stream: a role chunk a choice, choice 0 first, before any content; content; a finish chunk
a choice; the usage, if asked for; `[DONE]`. Nothing is said before the first output, so that what
fails before it is answered with a status.
"""

from collections.abc import Sequence
from datetime import timedelta

from edge.http.wire_json import data_frame
from edge.openai.bodies import (
    DONE,
    Head,
    chat_logprobs,
    failure_frames,
    finish_reason,
    head_of,
    usage_body,
)
from edge.upstream.answers import Answer, check_success, total_usage
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, OutputText, TokenLogprob
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord

PREFIX = "chatcmpl-"


class ChatStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: ModelRecord, choices: int, *, include_usage: bool, logprobs: bool) -> None:
        self._model = model
        self._choices = choices
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._head: Head | None = None
        self._opened = False
        self._ends: dict[int, Completed] = {}

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
                return self._open() + self._content(event.index, output.text, output.logprobs)
            case Completed() as end:
                check_success(end)
                self._ends[event.index] = end
                frames = self._open() + self._chunk(event.index, {}, finish=finish_reason(end))
                return frames + self._closing() if self.ended else frames
            case Accepted() as accepted:
                if event.index == 0:
                    self._head = head_of(accepted, self._model, PREFIX, "chat.completion.chunk")
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


def chat_body(
    accepted: Sequence[Accepted], answers: Sequence[Answer], model: ModelRecord, *, logprobs: bool
) -> dict[str, object]:
    """Return the whole answer; every one of `answers` has ended well."""
    ends = [answer.end for answer in answers if answer.end is not None]
    choices: list[dict[str, object]] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": chat_logprobs(answer.logprobs) if logprobs else None,
            "finish_reason": finish_reason(end),
        }
        for index, (answer, end) in enumerate(zip(answers, ends, strict=True))
    ]
    body = head_of(accepted[0], model, PREFIX, "chat.completion").with_choices(choices)
    return body | {"usage": usage_body(total_usage(ends, samples=len(ends)))}
