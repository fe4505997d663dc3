"""The worker's parts: outbox, one job around a hand-driven engine, error text, prompt threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from service.domain.chat import ChatMessage, ChatPrompt, ForcedTool, Tool
from service.domain.request import (
    Constraint,
    GenerationRequest,
    JsonSchema,
    Prompt,
    Regex,
    Stopping,
    TextPrompt,
)
from service.domain.stop import TokenPiece
from service.domain.tools import forced_schema
from service.engine_frames import FrameSplitter, OutputDraft, Step, unpack_reply
from service.engine_worker.error_text import MAX_ERROR_BYTES, error_text
from service.engine_worker.job import WorkerJob
from service.engine_worker.outbox import MAX_MERGED_TOKENS, MAX_STEP_TOKENS, Outbox, merge
from service.engine_worker.prompts import PromptThreads, PromptThreadsLost
from service.ports.engine import (
    ConstraintError,
    Deliver,
    Ended,
    EndReason,
    EngineInfo,
    Job,
    Prefilled,
    Produced,
    PromptError,
)
from service.ports.engine_host import HostJob, JobEnded, JobOutput, JobPrefilled

WAIT_S = 30.0
INFO = EngineInfo("hand", 2, 20, 1000, True)


class Wire:
    """An outbox whose frames are decoded and kept."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.outbox = Outbox(self._write)

    def _write(self, frame: bytearray) -> None:
        for payload in FrameSplitter().feed(bytes(frame)):
            reply = unpack_reply(payload)
            assert isinstance(reply, Step)
            self.steps.append(reply)

    def flush(self) -> None:
        while self.outbox.flush():
            pass

    @property
    def text(self) -> str:
        self.flush()
        return "".join(output.text for step in self.steps for output in step.outputs)

    @property
    def outputs(self) -> list[JobOutput]:
        self.flush()
        return [output for step in self.steps for output in step.outputs]

    @property
    def ends(self) -> list[JobEnded]:
        self.flush()
        return [ended for step in self.steps for ended in step.ended]


class HandEngine:
    """An engine that does what the test says. A prompt's tokens are its characters."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.deliver: Deliver = lambda event: None
        self.canceled: list[str] = []

    def load(self, progress: Callable[[float], None]) -> EngineInfo:
        return INFO

    def prepare(self, prompt: Prompt, continuation: str = "") -> tuple[int, ...]:
        text = prompt.text if isinstance(prompt, TextPrompt) else "chat"
        if "bad" in text:
            raise PromptError("a bad prompt")
        return tuple(map(ord, text + continuation))

    def check(self, constraint: Constraint) -> None:
        raise ConstraintError("a bad constraint")

    def submit(self, job: Job, deliver: Deliver) -> None:
        self.jobs.append(job)
        self.deliver = deliver

    def cancel(self, job_id: str) -> None:
        self.canceled.append(job_id)

    def close(self) -> None:
        pass

    def say(self, *pieces: str | bytes) -> None:
        for piece in pieces:
            data = piece.encode() if isinstance(piece, str) else piece
            self.deliver(Produced("j", TokenPiece(data, (len(data),), 1)))

    def end(self, reason: EndReason = EndReason.EOS, tokens: int = 9, error: str = "") -> None:
        self.deliver(Ended("j", reason, tokens, 3, error))


class Bench:
    """A job on a hand-driven engine."""

    def __init__(
        self, prompt: str | ChatPrompt = "abc", stop: tuple[str, ...] = (), **fields: object
    ) -> None:
        stopping = Stopping(stop=stop, min_tokens=fields.pop("min_tokens", 0))  # type: ignore[arg-type]  # an int
        constraint = fields.pop("constraint", None)
        given = TextPrompt(prompt) if isinstance(prompt, str) else prompt
        request = GenerationRequest(given, stopping=stopping, constraint=constraint)  # type: ignore[arg-type]  # by name
        self.wire, self.engine, self.forgotten = Wire(), HandEngine(), list[str]()
        job = HostJob("j", request, **{"max_tokens": 10, **fields})  # type: ignore[arg-type]  # by name
        self.job = WorkerJob(job, self.engine, INFO, self.wire.outbox, self.forgotten.append)

    def start(self) -> Bench:
        self.job.prepare()
        return self

    @property
    def end(self) -> JobEnded:
        (only,) = self.wire.ends
        assert self.forgotten == ["j"]
        return only


def test_pieces_become_text_and_counts() -> None:
    bench = Bench().start()
    bench.engine.deliver(Prefilled("j", 3, 3, 1))
    bench.engine.say("a", b"\xc3", b"\xa9")
    bench.engine.end()
    assert bench.wire.text == "aé"
    assert bench.wire.steps[0].prefilled == [JobPrefilled("j", 3, 3, 1)]
    assert bench.end == JobEnded("j", EndReason.EOS, None, 3, 3, 9)


def test_a_stop_over_pieces_cancels_at_once_and_ends_when_the_slot_is_free() -> None:
    bench = Bench(stop=("DEFGHIJ",)).start()
    bench.engine.say("ABC", "DEF", "G", "HI")
    assert bench.wire.text == "ABC" and bench.engine.canceled == []
    bench.engine.say("J")
    assert bench.engine.canceled == ["j"] and bench.wire.ends == []
    bench.engine.say("K")
    bench.engine.end(EndReason.CANCELED, 6)
    assert bench.wire.text == "ABC"
    assert bench.end.reason is EndReason.EOS and bench.end.matched_stop == "DEFGHIJ"
    assert bench.end.output_tokens == 5


@pytest.mark.parametrize("reason", EndReason)
def test_a_cut_off_character_becomes_one_replacement_for_every_end(reason: EndReason) -> None:
    bench = Bench().start()
    bench.engine.say(b"\xf0\x9f\x98")
    bench.engine.end(reason)
    assert bench.wire.text == "\N{REPLACEMENT CHARACTER}" and bench.end.reason is reason


def test_held_text_is_released_at_the_end() -> None:
    bench = Bench(stop=("xyz",)).start()
    bench.engine.say("ax", "y")
    bench.engine.end(EndReason.LENGTH)
    assert bench.wire.text == "axy" and bench.end.reason is EndReason.LENGTH


def test_text_ahead_of_its_token_says_so() -> None:
    bench = Bench(stop=("ta x",)).start()
    bench.engine.say(" beta")
    assert not bench.wire.outputs[-1].aligned
    bench.engine.say("!")
    assert bench.wire.outputs[-1].aligned


def test_an_end_after_a_match_stays_a_match_even_if_the_engine_fails() -> None:
    bench = Bench(stop=("x",)).start()
    bench.engine.say("ax")
    bench.engine.end(EndReason.FAILED, error="too late")
    assert bench.end.reason is EndReason.EOS and bench.end.error == ""


def test_exact_ids_are_fed_after_the_prompt() -> None:
    fields = {"text": "de", "token_ids": (7, 8), "token_ids_exact": True, "generated_tokens": 2}
    bench = Bench(min_tokens=3, **fields).start()
    assert bench.engine.jobs[0].token_ids == (97, 98, 99, 7, 8)
    assert bench.engine.jobs[0].min_tokens == 1
    bench.engine.end()
    assert bench.end.input_tokens == 3


REPLAY = {"text": "de", "generated_tokens": 2, "replay": True}


def test_a_replay_generates_the_log_again_unseen_and_goes_on() -> None:
    bench = Bench(max_tokens=8, **REPLAY).start()
    assert bench.engine.jobs[0].token_ids == (97, 98, 99) and bench.engine.jobs[0].max_tokens == 10
    bench.engine.say("d", "e")
    assert bench.wire.text == "" and bench.wire.steps[-1].prefilled
    bench.engine.say("f")
    bench.engine.end(tokens=4)
    assert bench.wire.text == "f" and bench.end.output_tokens == 2


def test_a_replay_that_diverges_goes_on_behind_a_prefill_in_the_same_slot() -> None:
    bench = Bench(**REPLAY).start()
    bench.engine.say("d", "X", "Y")
    assert bench.engine.canceled == ["j"] and bench.wire.text == ""
    bench.engine.end(EndReason.CANCELED)
    assert bench.wire.ends == []
    second = bench.engine.jobs[1]
    assert (second.id, second.token_ids, second.max_tokens) == ("j/2", (97, 98, 99, 100, 101), 10)
    bench.engine.say("f")
    bench.job.cancel()
    assert bench.engine.canceled == ["j", "j/2"]
    bench.engine.end(tokens=2)
    assert bench.wire.text == "f" and bench.end.output_tokens == 2


def test_a_replay_that_ends_before_the_log_does_has_diverged() -> None:
    bench = Bench(**REPLAY).start()
    bench.engine.say("d")
    bench.engine.end()
    assert len(bench.engine.jobs) == 2 and bench.wire.ends == []


def test_a_cancel_during_a_replay_ends_it() -> None:
    bench = Bench(**REPLAY).start()
    bench.engine.say("d")
    bench.job.cancel()
    bench.engine.end(EndReason.CANCELED, tokens=1)
    assert bench.end.reason is EndReason.CANCELED and bench.end.output_tokens == 0


def test_a_forced_tool_is_the_jobs_constraint_and_its_replay_stays_under_it() -> None:
    tools = (Tool("f"),)
    prompt = ChatPrompt((ChatMessage("user", "x"),), tools, ForcedTool("f"))
    bench = Bench(prompt).start()
    assert bench.engine.jobs[0].constraint == JsonSchema(forced_schema(tools, ForcedTool("f")))
    again = Bench(prompt, **REPLAY).start()
    again.engine.say("X")
    again.engine.end(EndReason.CANCELED, 1)
    assert again.end.reason is EndReason.FAILED and "constraint" in again.end.error


def test_a_constrained_replay_that_diverges_fails_instead_of_leaving_its_constraint() -> None:
    bench = Bench(constraint=Regex("d.*"), **REPLAY).start()
    bench.engine.say("X")
    bench.engine.end(EndReason.CANCELED)
    assert bench.end.reason is EndReason.FAILED and "constraint" in bench.end.error
    assert len(bench.engine.jobs) == 1


def test_text_is_fed_where_ids_are_not_exact() -> None:
    bench = Bench(text="de", token_ids=(7,), generated_tokens=2).start()
    assert bench.engine.jobs[0].token_ids == (97, 98, 99, 100, 101)


def test_a_stop_string_begun_before_the_loss_of_an_engine_is_found_by_the_next() -> None:
    first = Bench(stop=("gamma",)).start()
    first.engine.say("beta", " gam")
    logged = first.wire.text
    assert logged == "beta "  # what may begin a stop never reached the log: a fresh start is right
    second = Bench(stop=("gamma",), text=logged, generated_tokens=1).start()
    second.engine.say("gam", "ma", "!")
    second.engine.end(EndReason.CANCELED)
    assert second.wire.text == "" and second.end.matched_stop == "gamma"


def test_tokens_of_an_earlier_claim_count_to_the_minimum() -> None:
    bench = Bench(stop=("x",), min_tokens=2, text="de", generated_tokens=2).start()
    bench.engine.say("x")
    bench.engine.end(EndReason.CANCELED)
    assert bench.end.matched_stop == "x"


def test_the_room_in_the_context_bounds_the_tokens() -> None:
    assert Bench(prompt="a" * 15).start().engine.jobs[0].max_tokens == 5
    full = Bench(prompt="a" * 20).start()
    assert full.engine.jobs == [] and full.end.reason is EndReason.FAILED and full.end.invalid
    grown = Bench(prompt="a" * 15, text="b" * 5, generated_tokens=5).start()
    assert grown.end == JobEnded("j", EndReason.LENGTH, input_tokens=15)


def test_a_bad_prompt_fails_the_job_as_its_own_fault() -> None:
    bench = Bench(prompt="bad").start()
    assert bench.end.reason is EndReason.FAILED and bench.end.invalid and bench.end.error == "a bad prompt"


def test_a_cancel_before_the_prompt_is_ready_ends_it_at_once() -> None:
    bench = Bench()
    bench.job.cancel()
    bench.start()
    assert bench.engine.jobs == [] and bench.end.reason is EndReason.CANCELED


def test_a_cancel_while_it_runs_waits_for_the_engine() -> None:
    bench = Bench().start()
    bench.job.cancel()
    assert bench.engine.canceled == ["j"] and bench.wire.ends == []
    bench.engine.end(EndReason.CANCELED)
    assert bench.end.reason is EndReason.CANCELED


def test_a_fault_in_our_code_ends_the_job_alone(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench().start()
    bench.engine.deliver(Produced("j", None))  # type: ignore[arg-type]  # the fault
    bench.engine.say("more")
    assert bench.engine.canceled == ["j"]
    bench.engine.end(EndReason.CANCELED)
    assert bench.end.reason is EndReason.FAILED and "AttributeError" in bench.end.error
    assert bench.wire.text == "" and "Traceback" in capsys.readouterr().err


def test_a_long_error_is_cut_for_the_caller_and_whole_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench().start()
    bench.engine.end(EndReason.FAILED, error="bad\x00💧\n" * 20_000)
    assert len(bench.end.error.encode()) <= MAX_ERROR_BYTES and "\x00" not in bench.end.error
    assert len(capsys.readouterr().err) > 100_000


@pytest.mark.parametrize("text", ["", "short", "é" * 511, "é" * 5000, "\ud800\x00", "💧" * 300, "a\nb"])
def test_error_text_is_short_and_printable(text: str) -> None:
    shown = error_text(text)
    assert len(shown.encode()) <= MAX_ERROR_BYTES
    assert "\x00" not in shown and "\n" not in shown
    if text.isprintable() and len(text.encode()) <= MAX_ERROR_BYTES:
        assert shown == text


def test_a_release_without_a_count_is_merged_too() -> None:
    assert [d.text for d in merge([draft("a", "x", 0), draft("a", "y", 2)])] == ["xy"]


def draft(job_id: str, text: str, count: int = 1, *, aligned: bool = True) -> OutputDraft:
    return OutputDraft(job_id, text, tuple(range(count)), count, aligned=aligned)


def test_what_comes_during_a_write_shares_the_next_frame() -> None:
    writing, go_on, frames = threading.Semaphore(0), threading.Semaphore(0), list[Step]()

    def write(frame: bytearray) -> None:
        writing.release()
        assert go_on.acquire(timeout=WAIT_S)
        (payload,) = FrameSplitter().feed(bytes(frame))
        reply = unpack_reply(payload)
        assert isinstance(reply, Step)
        frames.append(reply)

    outbox = Outbox(write)
    outbox.start()
    outbox.output(draft("a", "first"))
    assert writing.acquire(timeout=WAIT_S)  # the first one is not delayed
    for i in range(64):
        outbox.output(draft(str(i), "x"))
        outbox.ended(JobEnded(str(i), EndReason.EOS))
    outbox.output(draft("a", "y"))
    outbox.output(draft("a", "z", aligned=False))
    go_on.release(3)
    assert writing.acquire(timeout=WAIT_S)
    outbox.output(draft("a", "last"))
    assert writing.acquire(timeout=WAIT_S)
    assert [len(step.outputs) for step in frames[:2]] == [1, 65] and len(frames[1].ended) == 64
    assert frames[1].outputs[-1] == JobOutput("a", "yz", (0, 0), 2, aligned=False)


def test_a_backlog_is_cut_into_frames_in_order() -> None:
    wire = Wire()
    for i in range(3 * MAX_STEP_TOKENS):
        wire.outbox.output(draft("ab"[i % 2], f"{i} "))
    wire.outbox.ended(JobEnded("a", EndReason.EOS))
    wire.flush()
    assert all(sum(o.token_count for o in step.outputs) <= MAX_STEP_TOKENS for step in wire.steps)
    assert [len(step.ended) for step in wire.steps] == [0] * (len(wire.steps) - 1) + [1]
    for parity, job_id in enumerate("ab"):
        text = "".join(o.text for o in wire.outputs if o.job_id == job_id)
        assert text == "".join(f"{i} " for i in range(parity, 3 * MAX_STEP_TOKENS, 2))


def test_merging_stops_at_its_limit() -> None:
    merged = merge([draft("a", "x", 200), draft("a", "y", 100), draft("b", "z"), draft("a", "w")])
    found = [(d.job_id, d.text, d.token_count) for d in merged]
    assert found == [("a", "x", 200), ("a", "yw", 101), ("b", "z", 1)]
    assert MAX_MERGED_TOKENS == 256


def test_a_prompt_that_raises_fails_alone(capsys: pytest.CaptureFixture[str]) -> None:
    threads, failed = PromptThreads(1), threading.Semaphore(0)
    texts: list[str] = []

    def fail(text: str) -> None:
        texts.append(text)
        failed.release()

    def work() -> None:
        raise ZeroDivisionError("secret")

    for _ in range(2):
        threads.run(work, fail)
        assert failed.acquire(timeout=WAIT_S)
    assert texts == ["the prompt could not be prepared: ZeroDivisionError"] * 2


def test_prompts_that_never_end_are_given_up_and_at_last_the_process_is() -> None:
    threads, failed, started = PromptThreads(1, limit_s=0), list[str](), threading.Semaphore(0)

    def hang() -> None:
        started.release()
        threading.Event().wait()

    for _ in range(4):
        threads.run(hang, failed.append)
        assert started.acquire(timeout=WAIT_S)
        while len(failed) < threads._lost + 1 and not failed:
            threads.expire()
        threads.expire()
    threads.run(hang, failed.append)
    assert started.acquire(timeout=WAIT_S)
    with pytest.raises(PromptThreadsLost):
        while True:
            threads.expire()
    assert len(failed) == 5
