"""Owns `POST /generate`: a stream of tokens for plain `fetch`, as many examples on the web have it.

Each event is `data: {"token": …}`, the last one `data: [DONE]`; a failure in mid-stream is an
`event: error` with OpenAI's error object and no `[DONE]` after it, since plain readers take that for a
good end. The prompt is one user turn where the model has a chat template, else raw text.
"""

from datetime import timedelta
from typing import Annotated, Final

from pydantic import Field

from edge.http.wire_json import data_frame
from edge.openai.bodies import DONE
from edge.openai.errors import upstream_body
from edge.openai.fields import MAX_INT64, Count, StopList, Strict, read_body
from edge.upstream.answers import check_success
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Completed, OutputText
from edge.upstream.port import Choice
from edge.upstream.records import ChatInput, ChatMessage, Generation, Sampling, Stopping, TextInput

NAMES: Final = {"chat": "prompt", "messages": "prompt"}


class GenerateBody(Strict):
    """The body."""

    prompt: Annotated[str, Field(min_length=1)]
    model: str | None = None
    """Not needed where one model is served."""

    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: Annotated[int, Field(ge=-1, le=MAX_INT64)] | None = None
    stop: StopList | None = None


def read_generate(body: object) -> GenerateBody:
    """Return the body, checked. Raises RequestRefused."""
    return read_body(GenerateBody, body, {"stream": (True,)})


def generation_of(given: GenerateBody, *, chat_template: bool, default_tokens: int) -> Generation:
    """Return what to generate."""
    return Generation(
        input=ChatInput((ChatMessage("user", given.prompt),)) if chat_template else TextInput(given.prompt),
        sampling=Sampling(
            temperature=given.temperature,
            top_p=given.top_p,
            top_k=None if given.top_k == -1 else given.top_k,
            seed=None if given.seed == -1 else given.seed,
        ),
        stopping=Stopping(max_tokens=given.max_tokens or default_tokens, stop=tuple(given.stop or ())),
    )


class TokenStream:
    """Renders one stream. An `SseRendering` of `Choice`."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False

    def render(self, event: Choice) -> bytes:
        """Return the frame of an event. Raises UpstreamError for a prediction that did not succeed."""
        match event.event:
            case OutputText(text=text) if text:
                return data_frame({"token": text})
            case Completed() as end:
                check_success(end)
                self.ended = True
                return DONE
            case _:
                return b""

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the error; nothing may follow it."""
        return data_frame(upstream_body(error), event="error")

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return that this process stops."""
        return self.render_failure(UpstreamError(Reason.DRAINING))

    def last_words(self) -> bytes:
        """Return nothing: `[DONE]` was the last."""
        return b""
