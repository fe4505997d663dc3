"""Owns completions as they go out: chunks of a stream and the whole body, which are one kind of object."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from edge.http.wire_json import data_frame
from edge.openai.bodies import (
    DONE,
    Head,
    TextLogprobs,
    failure_frames,
    finish_reason,
    head_of,
    usage_body,
)
from edge.openai.completions_schema import CompletionBody
from edge.upstream.answers import Answer, check_success, total_usage
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed, OutputText
from edge.upstream.port import Choice
from edge.upstream.records import ModelRecord

PREFIX: Final = "cmpl-"
KIND: Final = "text_completion"


class CompletionStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    def __init__(self, model: ModelRecord, body: CompletionBody) -> None:
        self._model = model
        self._body = body
        self._choices = len(body.prompt) * body.choices
        self._head: Head | None = None
        self._ends: dict[int, Completed] = {}
        self._to_echo = {i: text for i in range(self._choices) if (text := body.echoed(i))}
        self._logprobs = [TextLogprobs(len(body.echoed(i)), body.logprobs or 0) for i in range(self._choices)]

    @property
    def ended(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ends) == self._choices

    def render(self, event: Choice) -> bytes:
        """Return the chunks of an event. Raises UpstreamError for a prediction that did not succeed."""
        match event.event:
            case OutputText() as output:
                has_logprobs = self._body.logprobs is not None and bool(output.logprobs)
                if not output.text and not has_logprobs:
                    return b""
                taken = self._logprobs[event.index].take(output.logprobs, len(output.text))
                text = self._to_echo.pop(event.index, "") + output.text
                return self._chunk(event.index, text, taken if has_logprobs else None, None)
            case Completed() as end:
                check_success(end)
                self._ends[event.index] = end
                text = self._to_echo.pop(event.index, "")
                frames = self._chunk(event.index, text, None, finish_reason(end))
                return frames + self._closing() if self.ended else frames
            case Accepted() as accepted:
                if event.index == 0:
                    self._head = head_of(accepted, self._model, PREFIX, KIND)
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

    def _chunk(self, index: int, text: str, logprobs: dict[str, object] | None, finish: str | None) -> bytes:
        assert self._head is not None, "the first event of every prediction tells its id"
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        chunk = self._head.with_choices([choice])
        if self._body.include_usage:
            chunk["usage"] = None
        return data_frame(chunk)

    def _closing(self) -> bytes:
        if not self._body.include_usage:
            return DONE
        assert self._head is not None
        ends = [self._ends[index] for index in range(self._choices)]
        usage = usage_body(total_usage(ends, samples=self._body.choices))
        return data_frame(self._head.with_choices([]) | {"usage": usage}) + DONE


def completion_body(
    accepted: Sequence[Accepted], answers: Sequence[Answer], model: ModelRecord, body: CompletionBody
) -> dict[str, object]:
    """Return the whole answer; every one of `answers` has ended well."""
    ends = [answer.end for answer in answers if answer.end is not None]
    choices: list[dict[str, object]] = []
    for index, (answer, end) in enumerate(zip(answers, ends, strict=True)):
        echoed = body.echoed(index)
        logprobs = None
        if body.logprobs is not None:
            logprobs = TextLogprobs(len(echoed), body.logprobs).take(answer.logprobs, len(answer.text))
        choices.append(
            {
                "index": index,
                "text": echoed + answer.text,
                "logprobs": logprobs,
                "finish_reason": finish_reason(end),
            }
        )
    whole = head_of(accepted[0], model, PREFIX, KIND).with_choices(choices)
    return whole | {"usage": usage_body(total_usage(ends, samples=body.choices))}
