"""The frames between the service and its engine's process: MessagePack behind a 4-byte length.

Owns the closed set of messages on the socket pair, their bytes, and the way to and from the port's
dataclasses. It does not own sockets, processes or what a message makes anybody do.

A frame is its length (4 bytes, big endian, without themselves) and one MessagePack array whose
first element names the message. The hot one is `step`: the service decodes it straight into the
port's dataclasses, without a second object per delta, so its items are maps with their field names
(`tests/unit/service/test_engine_frames.py` holds drafts and dataclasses to the same names). Both
ends are always the same release, as the service starts the other end itself: there is no version.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Literal, assert_never

import msgspec

from service.domain.events import TokenLogprob
from service.domain.request import (
    ChatPrompt,
    Constraint,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Prompt,
    Regex,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
)
from service.ports.engine import EngineInfo
from service.ports.engine_host import HostJob, JobEnded, JobOutput, JobPrefilled

MAX_FRAME_BYTES = 32 * 1024 * 1024
"""Above the largest request the service takes (a 4 MiB prompt, as ids at 5 bytes each: 20 MiB)."""
_LENGTH_BYTES = 4


class FrameError(Exception):
    """Bytes that are no frame of ours, or a message that fits in none."""


class PromptFrame(msgspec.Struct, array_like=True, frozen=True):
    """A `Prompt`: exactly one field is set."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    chat: ChatPrompt | None = None


class ConstraintFrame(msgspec.Struct, array_like=True, frozen=True):
    """A `Constraint`."""

    kind: Literal["json_schema", "regex", "grammar"]
    text: str


class Load(msgspec.Struct, array_like=True, frozen=True, tag="load"):
    """Build the named adapter and load the model. The first command, sent once."""

    engine: str
    settings: dict[str, object]


class Submit(msgspec.Struct, array_like=True, frozen=True, tag="submit"):
    """A `HostJob`, flat."""

    id: str
    prompt: PromptFrame
    sampling: Sampling
    stopping: Stopping
    constraint: ConstraintFrame | None
    logprobs: int | None
    priority: int
    max_tokens: int
    text: str
    token_ids: tuple[int, ...]
    token_ids_exact: bool
    generated_tokens: int
    replay: bool


class Cancel(msgspec.Struct, array_like=True, frozen=True, tag="cancel"):
    """End a job; unknown ones are ignored."""

    job_id: str


class Count(msgspec.Struct, array_like=True, frozen=True, tag="count"):
    """Count the tokens of a prompt, and check a constraint; answered with the same number."""

    number: int
    prompt: PromptFrame
    constraint: ConstraintFrame | None = None


class Close(msgspec.Struct, array_like=True, frozen=True, tag="close"):
    """End all jobs, free the model and exit."""


Command = Load | Submit | Cancel | Count | Close


class LoadProgress(msgspec.Struct, array_like=True, frozen=True, tag="progress"):
    """How much of the model is loaded, 0 to 1."""

    fraction: float


class Loaded(msgspec.Struct, array_like=True, frozen=True, tag="loaded"):
    """Jobs can be submitted."""

    info: EngineInfo


class LoadFailed(msgspec.Struct, array_like=True, frozen=True, tag="load_failed"):
    """The model cannot be served; the process exits after this."""

    error: str


class Counted(msgspec.Struct, array_like=True, frozen=True, tag="counted"):
    """The answer to `Count`."""

    number: int
    tokens: int


class Fault(Enum):
    """What a failed count failed for."""

    PROMPT = "prompt"
    CONSTRAINT = "constraint"
    ENGINE = "engine"


class CountFailed(msgspec.Struct, array_like=True, frozen=True, tag="count_failed"):
    """The other answer to `Count`."""

    number: int
    error: str
    fault: Fault


class Step(msgspec.Struct, array_like=True, frozen=True, tag="step"):
    """What one engine step brought. In this order a job's own events are in order too."""

    prefilled: list[JobPrefilled]
    outputs: list[JobOutput]
    ended: list[JobEnded]


Reply = LoadProgress | Loaded | LoadFailed | Counted | CountFailed | Step


class OutputDraft(msgspec.Struct, omit_defaults=True):
    """A `JobOutput` on its way: a struct costs a tenth of the dataclass to make."""

    job_id: str
    text: str
    token_ids: tuple[int, ...] = ()
    token_count: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    aligned: bool = True


class StepDraft(msgspec.Struct, array_like=True, frozen=True, tag="step"):
    """A `Step` on its way."""

    prefilled: list[JobPrefilled]
    outputs: list[OutputDraft]
    ended: list[JobEnded]


_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def pack(message: Command | Reply | StepDraft) -> bytearray:
    """Return the whole frame. Raises `FrameError` for lone surrogates and for too much data."""
    frame = bytearray(_LENGTH_BYTES)
    try:
        _ENCODER.encode_into(message, frame, _LENGTH_BYTES)
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise FrameError(f"the message cannot be encoded: {type(error).__name__}") from error
    length = len(frame) - _LENGTH_BYTES
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {length} bytes is above the limit of {MAX_FRAME_BYTES}")
    frame[:_LENGTH_BYTES] = length.to_bytes(_LENGTH_BYTES, "big")
    return frame


def unpack_command(payload: bytes | memoryview) -> Command:
    """Decode what stands behind the length. Raises `FrameError`."""
    try:
        return _COMMANDS.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a command: {error}") from error


def unpack_reply(payload: bytes | memoryview) -> Reply:
    """Decode what stands behind the length. Raises `FrameError`."""
    try:
        return _REPLIES.decode(payload)
    except msgspec.MsgspecError as error:
        raise FrameError(f"not a reply: {error}") from error


class FrameSplitter:
    """Cut a byte stream into payloads. Holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that `data` completes. Raises `FrameError` at an impossible length."""
        if self._rest:
            self._rest += data
            data = bytes(self._rest) if self._complete() else b""
            if not data:
                return
            self._rest.clear()
        start, size = 0, len(data)
        while size - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            end = body + self._length(data[start:body])
            if end > size:
                break
            yield data[body:end]
            start = end
        self._rest += data[start:]

    def _complete(self) -> bool:
        if len(self._rest) < _LENGTH_BYTES:
            return False
        return len(self._rest) >= _LENGTH_BYTES + self._length(self._rest[:_LENGTH_BYTES])

    @staticmethod
    def _length(head: bytes | bytearray) -> int:
        length = int.from_bytes(head, "big")
        if not 0 < length <= MAX_FRAME_BYTES:
            raise FrameError(f"a frame cannot be {length} bytes long")
        return length


def prompt_to_frame(prompt: Prompt) -> PromptFrame:
    """Convert for the way out."""
    match prompt:
        case TextPrompt(text):
            return PromptFrame(text=text)
        case TokenPrompt(token_ids):
            return PromptFrame(token_ids=token_ids)
        case ChatPrompt():
            return PromptFrame(chat=prompt)
        case _:
            assert_never(prompt)


def prompt_from_frame(frame: PromptFrame) -> Prompt:
    """Convert on the way in. Raises `FrameError` for a frame with no field set."""
    if frame.text is not None:
        return TextPrompt(frame.text)
    if frame.token_ids is not None:
        return TokenPrompt(frame.token_ids)
    if frame.chat is not None:
        return frame.chat
    raise FrameError("a prompt without content")


def constraint_to_frame(constraint: Constraint | None) -> ConstraintFrame | None:
    match constraint:
        case None:
            return None
        case JsonSchema(text):
            return ConstraintFrame("json_schema", text)
        case Regex(text):
            return ConstraintFrame("regex", text)
        case Grammar(text):
            return ConstraintFrame("grammar", text)
        case _:
            assert_never(constraint)


def constraint_from_frame(frame: ConstraintFrame | None) -> Constraint | None:
    if frame is None:
        return None
    match frame.kind:
        case "json_schema":
            return JsonSchema(frame.text)
        case "regex":
            return Regex(frame.text)
        case "grammar":
            return Grammar(frame.text)
        case _:
            assert_never(frame.kind)


def job_to_frame(job: HostJob) -> Submit:
    """Convert for the way out."""
    request = job.request
    return Submit(
        id=job.id,
        prompt=prompt_to_frame(request.prompt),
        sampling=request.sampling,
        stopping=request.stopping,
        constraint=constraint_to_frame(request.constraint),
        logprobs=request.logprobs,
        priority=request.priority,
        max_tokens=job.max_tokens,
        text=job.text,
        token_ids=job.token_ids,
        token_ids_exact=job.token_ids_exact,
        generated_tokens=job.generated_tokens,
        replay=job.replay,
    )


def job_from_frame(frame: Submit) -> HostJob:
    """Convert on the way in. Raises `FrameError` for a prompt without content."""
    request = GenerationRequest(
        prompt=prompt_from_frame(frame.prompt),
        sampling=frame.sampling,
        stopping=frame.stopping,
        constraint=constraint_from_frame(frame.constraint),
        logprobs=frame.logprobs,
        priority=frame.priority,
    )
    return HostJob(
        id=frame.id,
        request=request,
        max_tokens=frame.max_tokens,
        text=frame.text,
        token_ids=frame.token_ids,
        token_ids_exact=frame.token_ids_exact,
        generated_tokens=frame.generated_tokens,
        replay=frame.replay,
    )
