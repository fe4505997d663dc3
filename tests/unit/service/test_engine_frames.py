"""Frames survive the way there and back, however the stream is cut, and garbage is refused."""

from __future__ import annotations

import dataclasses
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.events import TokenLogprob, TopLogprob
from service.domain.request import (
    ChatMessage,
    ChatPrompt,
    ForcedTool,
    GenerationRequest,
    Grammar,
    JsonSchema,
    Prompt,
    Regex,
    Sampling,
    Stopping,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from service.engine_frames import (
    MAX_FRAME_BYTES,
    Cancel,
    Close,
    Command,
    Count,
    Counted,
    CountFailed,
    Fault,
    FrameError,
    FrameSplitter,
    Load,
    Loaded,
    LoadFailed,
    LoadProgress,
    OutputDraft,
    PromptFrame,
    Reply,
    Step,
    StepDraft,
    job_from_frame,
    job_to_frame,
    pack,
    prompt_from_frame,
    prompt_to_frame,
    unpack_command,
    unpack_reply,
)
from service.ports.engine import EndReason, EngineInfo
from service.ports.engine_host import HostJob, JobEnded, JobOutput, JobPrefilled

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
TEXT = st.text(max_size=20)
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple)
MESSAGES = st.lists(st.builds(ChatMessage, TEXT, TEXT, CALLS, TEXT), max_size=3).map(tuple)
TOOLS = st.lists(st.builds(Tool, TEXT, TEXT, TEXT), max_size=2).map(tuple)
PROMPTS: st.SearchStrategy[Prompt] = st.one_of(
    st.builds(TextPrompt, TEXT),
    st.builds(TokenPrompt, IDS),
    st.builds(ChatPrompt, MESSAGES, TOOLS, st.none() | st.builds(ForcedTool, TEXT), st.booleans()),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
SAMPLINGS = st.builds(
    Sampling,
    *([FLOATS] * 2),
    st.integers(0, 2**31 - 1),
    *([FLOATS] * 5),
    st.none() | st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), FLOATS), max_size=3).map(tuple),
)
STOPPINGS = st.builds(
    Stopping,
    st.none() | st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.lists(TEXT, max_size=3).map(tuple),
    IDS,
    st.booleans(),
)
CONSTRAINTS = st.none() | st.builds(JsonSchema, TEXT) | st.builds(Regex, TEXT) | st.builds(Grammar, TEXT)
REQUESTS = st.builds(
    GenerationRequest,
    PROMPTS,
    SAMPLINGS,
    STOPPINGS,
    CONSTRAINTS,
    st.none() | st.integers(0, 20),
    st.integers(-100, 100),
)
JOBS = st.builds(
    HostJob, TEXT, REQUESTS, st.integers(1, 10**6), TEXT, IDS, st.booleans(), st.integers(0, 10**6)
)
TOPS = st.builds(TopLogprob, TEXT, st.binary(max_size=4), st.none(), FLOATS)
LOGPROBS = st.lists(
    st.builds(
        TokenLogprob,
        TEXT,
        st.binary(max_size=4),
        st.none() | st.integers(0, 9),
        FLOATS,
        st.lists(TOPS, max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
STEPS = st.builds(
    Step,
    st.lists(st.builds(JobPrefilled, TEXT, *([st.integers(0, 9)] * 3)), max_size=2),
    st.lists(st.builds(JobOutput, TEXT, TEXT, IDS, st.integers(0, 9), LOGPROBS, st.booleans()), max_size=4),
    st.lists(
        st.builds(
            JobEnded,
            TEXT,
            st.sampled_from(EndReason),
            st.none() | TEXT | st.integers(0, 9),
            *([st.integers(0, 2**31)] * 3),
            TEXT,
            st.booleans(),
        ),
        max_size=2,
    ),
)
COMMANDS: list[Command] = [
    Load("scripted", {"slots": 2, "names": ["a"], "rate": 1.5, "none": None}),
    Cancel("a.1"),
    Count(3, PromptFrame(text="")),
    Close(),
]
INFO = EngineInfo(
    "scripted", 8, 4096, 100, True, (1, 2), frozenset({"logprobs", "regex"}), "abc", "torch", "hermes"
)
REPLIES: list[Reply] = [
    LoadProgress(0.5),
    Loaded(INFO),
    LoadFailed("no such file"),
    Counted(1, 2),
    CountFailed(1, "bad", Fault.CONSTRAINT),
]


def payload(frame: bytearray) -> bytes:
    """Return what stands behind the length, found by the splitter."""
    (only,) = FrameSplitter().feed(bytes(frame))
    return only


@given(JOBS)
def test_a_job_survives_the_way(job: HostJob) -> None:
    assert job_from_frame(unpack_command(payload(pack(job_to_frame(job))))) == job  # type: ignore[arg-type]  # it is a Submit


@given(PROMPTS)
def test_a_prompt_survives_the_way(prompt: Prompt) -> None:
    assert prompt_from_frame(prompt_to_frame(prompt)) == prompt


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_a_command_survives_the_way(command: Command) -> None:
    assert unpack_command(payload(pack(command))) == command


@pytest.mark.parametrize("reply", REPLIES, ids=lambda r: type(r).__name__)
def test_a_reply_survives_the_way(reply: Reply) -> None:
    assert unpack_reply(payload(pack(reply))) == reply


@given(STEPS)
def test_a_drafted_step_arrives_as_the_ports_dataclasses(step: Step) -> None:
    drafts = [
        OutputDraft(o.job_id, o.text, o.token_ids, o.token_count, o.logprobs, o.aligned) for o in step.outputs
    ]
    assert unpack_reply(payload(pack(StepDraft(step.prefilled, drafts, step.ended)))) == step


def test_a_draft_has_the_fields_of_its_dataclass() -> None:
    drafted = [(f.name, f.default) for f in msgspec.structs.fields(OutputDraft)]
    port = [(f.name, f.default) for f in dataclasses.fields(JobOutput)]
    assert drafted[2:] == port[2:] and [name for name, _ in drafted] == [name for name, _ in port]


@given(st.lists(TEXT, max_size=6), st.data())
def test_frames_are_found_wherever_the_stream_is_cut(ids: list[str], data: st.DataObject) -> None:
    stream = b"".join(pack(Cancel(i)) for i in ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    splitter = FrameSplitter()
    found: list[str] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        for part in splitter.feed(stream[start:end]):
            found.append(cast(Cancel, unpack_command(part)).job_id)
    assert found == ids


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, 2**32 - 1])
def test_an_impossible_length_is_refused_before_its_bytes_come(length: int) -> None:
    with pytest.raises(FrameError):
        list(FrameSplitter().feed(length.to_bytes(4, "big")))
    slow = FrameSplitter()
    with pytest.raises(FrameError):
        for byte in length.to_bytes(4, "big"):
            list(slow.feed(bytes([byte])))


@given(st.binary(max_size=30))
def test_garbage_is_a_frame_error_or_a_message(data: bytes) -> None:
    for unpack in (unpack_command, unpack_reply):
        try:
            unpack(data)
        except FrameError:
            pass


def test_what_fits_in_no_frame_is_refused() -> None:
    with pytest.raises(FrameError):
        pack(Cancel("x" * (MAX_FRAME_BYTES + 1)))
    with pytest.raises(FrameError):
        pack(Cancel("\ud800"))
    with pytest.raises(FrameError):
        prompt_from_frame(PromptFrame())
