"""`EngineProcess` with real child processes and the scripted engine."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from service.domain.errors import EngineNotReady
from service.domain.request import ChatMessage, ChatPrompt, GenerationRequest, Prompt, Stopping, TextPrompt
from service.engine_frames import Cancel, pack
from service.ports.engine import EndReason, PromptError
from service.ports.engine_host import (
    EngineDown,
    EngineUp,
    HostEvent,
    HostJob,
    JobEnded,
    JobOutput,
    JobPrefilled,
)
from service.runtime.engine_process import EngineProcess, EngineProcessSettings

pytestmark = pytest.mark.anyio
_Event = TypeVar("_Event", EngineUp, EngineDown, JobEnded, JobOutput, JobPrefilled)
LIMIT_S = 60
"""A safety net for each wait; nothing is judged by time."""


class Reader:
    """What the host reported, and a way to wait for more."""

    def __init__(self, host: EngineProcess) -> None:
        self.host = host
        self.events: list[HostEvent] = []
        self.batches: list[list[HostEvent]] = []

    async def until(self, enough: Callable[[], bool]) -> None:
        with anyio.fail_after(LIMIT_S):
            while not enough():
                batch = list(await self.host.receive())
                self.batches.append(batch)
                self.events += batch

    async def up(self) -> EngineUp:
        before = self.of(EngineUp)
        await self.until(lambda: len(self.of(EngineUp)) > len(before))
        return self.of(EngineUp)[-1]

    async def down(self) -> EngineDown:
        before = self.of(EngineDown)
        await self.until(lambda: len(self.of(EngineDown)) > len(before))
        return self.of(EngineDown)[-1]

    async def end(self, job_id: str) -> JobEnded:
        def ends() -> list[JobEnded]:
            return [event for event in self.of(JobEnded) if event.job_id == job_id]

        await self.until(lambda: bool(ends()))
        (only,) = ends()
        return only

    async def output(self, job_id: str) -> None:
        await self.until(lambda: bool(self.text(job_id)))

    def of(self, kind: type[_Event]) -> list[_Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def text(self, job_id: str) -> str:
        return "".join(event.text for event in self.of(JobOutput) if event.job_id == job_id)


@asynccontextmanager
async def running(
    engine: dict[str, object] | None = None, /, *, wait_up: bool = True, **settings: object
) -> AsyncIterator[tuple[EngineProcess, Reader]]:
    """Run a host for the time of the block; afterwards its process must be gone."""
    values: dict[str, object] = {"engine": "scripted", "engine_settings": engine or {}, **settings}
    host = EngineProcess(EngineProcessSettings(**values), on_log=lambda line: None)  # type: ignore[arg-type]  # by name
    reader = Reader(host)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        if wait_up:
            await reader.up()
        pid = host.pid
        yield host, reader
        pid = host.pid or pid
        tasks.cancel_scope.cancel()
    assert host.pid is None
    if pid is not None:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def said(**script: object) -> TextPrompt:
    return TextPrompt("script:" + json.dumps(script))


def job(job_id: str, prompt: Prompt, *, stop: tuple[str, ...] = (), **fields: object) -> HostJob:
    request = GenerationRequest(prompt, stopping=Stopping(stop=stop))
    return HostJob(job_id, request, 3000, **fields)  # type: ignore[arg-type]  # by name


FOREVER = said(pieces=["on "], repeat=10**6, delay_ms=1)


async def test_a_job_runs_to_its_end_with_exact_text_and_counts() -> None:
    async with running() as (host, reader):
        prompt = ChatPrompt((ChatMessage("user", said(pieces=["é", "x "], hex=["f09f", "9299"]).text),))
        host.submit(job("a", prompt))
        ended = await reader.end("a")
        assert reader.text("a") == "éx 💙"
        assert ended == JobEnded("a", EndReason.EOS, None, await host.count(prompt), 0, 5)
        assert reader.of(JobPrefilled)[0] == JobPrefilled("a", ended.input_tokens, ended.input_tokens, 0)
        assert sum(output.token_count for output in reader.of(JobOutput)) == 4


@pytest.mark.parametrize(
    ("stop", "text"),
    [("beta gamma", " "), ("gamma", " beta "), ("m", " beta ga"), ("zz", " beta gamma delta")],
)
async def test_a_stop_string_over_pieces_ends_the_job_and_frees_the_slot(stop: str, text: str) -> None:
    async with running({"slots": 1}) as (host, reader):
        pieces = [" beta", " gam", "ma", " delta"]
        for name in ("a", "b"):  # the second needs the first one's slot
            host.submit(job(name, said(pieces=pieces, delay_ms=[0, 0, 0, 0]), stop=(stop,)))
            ended = await reader.end(name)
            assert reader.text(name) == text
            assert ended.reason is EndReason.EOS and ended.matched_stop == (None if stop == "zz" else stop)


async def test_after_a_stop_the_engine_does_not_run_on() -> None:
    async with running({"slots": 1}) as (host, reader):
        host.submit(job("a", FOREVER, stop=("on on on",)))
        ended = await reader.end("a")
        assert ended.reason is EndReason.EOS and ended.matched_stop == "on on on" and ended.output_tokens == 3


async def test_cancel_while_generating_prefilling_and_unknown() -> None:
    async with running() as (host, reader):
        host.cancel("never submitted")
        host.submit(job("generating", FOREVER))
        await reader.output("generating")
        host.cancel("generating")
        host.cancel("generating")
        assert (await reader.end("generating")).reason is EndReason.CANCELED
        host.submit(job("prefilling", said(pieces=["a"], prefill_ms=10**6, prefill_tokens=1)))
        host.cancel("prefilling")
        assert (await reader.end("prefilling")).reason is EndReason.CANCELED
        host.cancel("prefilling")
        host.submit(job("after", said(pieces=["a"])))
        assert (await reader.end("after")).reason is EndReason.EOS
        assert reader.text("prefilling") == ""


async def test_a_slow_cancel_is_confirmed_only_when_the_slot_is_free() -> None:
    async with running({"slots": 1}) as (host, reader):
        slow = said(pieces=["on "], repeat=10**6, delay_ms=1, cancel_takes_ms=200)
        host.submit(job("slow", slow))
        await reader.output("slow")
        host.cancel("slow")
        host.submit(job("too early", said(pieces=["a"])))  # the dispatcher would have waited
        assert "no slot" in (await reader.end("too early")).error
        assert (await reader.end("slow")).reason is EndReason.CANCELED
        host.submit(job("next", said(pieces=["a"])))
        assert (await reader.end("next")).reason is EndReason.EOS


async def test_kill_9_is_reported_and_the_next_process_works() -> None:
    async with running(first_pause=timedelta(milliseconds=10)) as (host, reader):
        host.submit(job("a.1", FOREVER))
        await reader.output("a.1")
        first = host.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        down = await reader.down()
        assert "SIGKILL" in down.cause and not down.final
        await reader.up()
        assert host.pid != first
        host.submit(job("a.2", said(pieces=["a", "b"])))
        assert (await reader.end("a.2")).reason is EndReason.EOS
        assert [e for e in reader.of(JobEnded) if e.job_id == "a.1"] == []


@pytest.mark.parametrize("exact", [True, False])
async def test_a_job_goes_on_after_a_crash_as_if_nothing_had_happened(tmp_path: Path, exact: bool) -> None:
    settings: dict[str, object] = {"crash_file": str(tmp_path / "crashes")}
    prompt = said(pieces=["one ", "two ", "é", "three"], repeat=5, crash_after=11, crash_times=1)
    async with running(settings, first_pause=timedelta(milliseconds=10)) as (host, reader):
        host.submit(job("a.1", prompt))
        await reader.down()
        await reader.up()
        outputs = reader.of(JobOutput)
        host.submit(
            job(
                "a.2",
                prompt,
                text=reader.text("a.1"),
                token_ids=tuple(i for output in outputs for i in output.token_ids),
                token_ids_exact=exact,
                generated_tokens=sum(output.token_count for output in outputs),
            )
        )
        assert (await reader.end("a.2")).reason is EndReason.EOS
        assert reader.text("a.1") + reader.text("a.2") == "one two éthree" * 5


async def test_a_hanging_engine_is_killed() -> None:
    settings = {"hang_limit": timedelta(milliseconds=400), "first_pause": timedelta(milliseconds=10)}
    async with running(**settings) as (host, reader):
        host.submit(job("a", said(pieces=["a"], repeat=3, hang_after=1)))
        assert "no sign of life" in (await reader.down()).cause
        await reader.up()
        host.submit(job("b", said(pieces=["b"])))
        assert (await reader.end("b")).reason is EndReason.EOS


async def test_an_engine_that_does_not_come_to_an_end_of_loading_is_killed() -> None:
    settings = {"load_limit": timedelta(milliseconds=300), "load_tries": 1}
    async with running({"load_hangs": True}, wait_up=False, **settings) as (_, reader):
        down = await reader.down()
        assert down.final and "load limit" in down.cause


@pytest.mark.parametrize(
    ("engine", "settings", "text"),
    [
        ("scripted", {"load_error": "no weights: run make model"}, "no weights: run make model"),
        ("scripted", {"slot": 1}, "unknown engine settings: slot"),
        ("scripted", {"slots": "many"}, "engine settings are wrong"),
        ("nonesuch", {}, "no engine named 'nonesuch'"),
        ("exllamav2", {}, "the engine exllamav2 is not installed"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_given_up(
    engine: str, settings: dict[str, object], text: str
) -> None:
    tries = {"load_tries": 2, "first_pause": timedelta(milliseconds=1), "engine": engine}
    async with running(settings, wait_up=False, **tries) as (host, reader):
        first, second = await reader.down(), await reader.down()
        assert (first.final, second.final) == (False, True)
        assert text in second.cause
        with pytest.raises(EngineNotReady):
            await host.count(TextPrompt("a"))
        host.submit(job("void", TextPrompt("a")))


async def test_count_is_exact_and_tells_whose_fault_it_is() -> None:
    async with running(counts_at_once=1) as (host, _):
        with anyio.fail_after(LIMIT_S):
            assert await host.count(TextPrompt("hello")) == 6
            with pytest.raises(PromptError, match="script cannot be read"):
                await host.count(TextPrompt("script:{"))
            with pytest.raises(PromptError):
                await host.count(TextPrompt("\ud800"))
            answers: list[int] = []

            async def count() -> None:
                answers.append(await host.count(TextPrompt("a")))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(count)
                await anyio.lowlevel.checkpoint()
                with pytest.raises(EngineNotReady):
                    await host.count(TextPrompt("b"))
            assert answers == [2]


async def test_count_ends_when_the_engine_is_lost() -> None:
    async with running() as (host, reader):
        assert host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:

                async def kill() -> None:
                    assert host.pid is not None
                    os.kill(host.pid, signal.SIGKILL)

                tasks.start_soon(kill)
                with pytest.raises(EngineNotReady):
                    await host.count(TextPrompt("a"))
        await reader.down()


async def test_an_engine_that_answers_no_count_is_killed() -> None:
    settings = {"hang_limit": timedelta(milliseconds=300), "count_limit": timedelta(milliseconds=50)}
    async with running(first_pause=timedelta(milliseconds=10), **settings) as (host, reader):
        assert host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
        with pytest.raises(EngineNotReady):
            await host.count(TextPrompt("a"))
        assert "no sign of life" in (await reader.down()).cause
        await reader.up()


async def test_a_prompt_that_fits_in_no_context_or_cannot_be_rendered_fails_alone() -> None:
    async with running({"context_tokens": 100}) as (host, reader):
        host.submit(job("long", TextPrompt("a" * 200)))
        host.submit(job("bad", TextPrompt("script:{")))
        host.submit(job("surrogate", TextPrompt("\ud800")))
        host.submit(job("good", said(pieces=["a"])))
        for name in ("long", "bad", "surrogate"):
            ended = await reader.end(name)
            assert ended.reason is EndReason.FAILED and ended.invalid and ended.error
        assert (await reader.end("good")).reason is EndReason.EOS


async def test_64_jobs_at_once_each_get_their_own_text() -> None:
    async with running({"slots": 64, "rate": 200.0}) as (host, reader):
        for i in range(64):
            host.submit(job(str(i), said(pieces=[f"<{i}>", "é", "💧"], repeat=10)))
        for i in range(64):
            ended = await reader.end(str(i))
            assert ended.reason is EndReason.EOS and ended.output_tokens == 31
            assert reader.text(str(i)) == f"<{i}>é💧" * 10
        outputs = [sum(isinstance(event, JobOutput) for event in batch) for batch in reader.batches]
        assert max(outputs) > 1  # a step's deltas come as one list


async def test_an_endless_error_message_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    async with running() as (host, reader):
        message = "broken\x00 💧\n"
        host.submit(job("a", said(pieces=["a"], fail_after=1, fail_message=message, fail_repeat=9000)))
        ended = await reader.end("a")
        assert ended.reason is EndReason.FAILED and not ended.invalid
        assert 900 < len(ended.error.encode()) <= 1024 and "\x00" not in ended.error


async def test_a_job_that_breaks_the_engines_loop_fails_alone() -> None:
    async with running() as (host, reader):
        host.submit(job("neighbour", said(pieces=["b"], repeat=50, delay_ms=1)))
        host.submit(job("broken", said(pieces=["a"], raise_after=1, fail_message="gone wrong")))
        assert "gone wrong" in (await reader.end("broken")).error
        assert (await reader.end("neighbour")).reason is EndReason.EOS
        assert reader.text("neighbour") == "b" * 50


async def test_a_consumer_that_does_not_receive_stops_the_reading_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.runtime.engine_process._MAX_PENDING", 2)
    async with running() as (host, reader):
        host.submit(job("a", said(pieces=["0123456789" * 100], repeat=2000)))
        link = host._life.link if host._life else None
        assert link is not None
        with anyio.fail_after(LIMIT_S):
            while not link.paused:
                await anyio.lowlevel.checkpoint()
        assert (await reader.end("a")).output_tokens == 2001
        assert reader.text("a") == "0123456789" * 100 * 2000


async def test_garbage_from_the_child_ends_it() -> None:
    async with running(first_pause=timedelta(milliseconds=10)) as (host, reader):
        assert host._life is not None
        host._life.link.data_received(b"\x00\x00\x00\x01\xc1")
        assert "garbage" in (await reader.down()).cause
        await reader.up()


@pytest.mark.parametrize(
    "garbage", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", bytes(pack(Cancel("x")))[:6]]
)
def test_a_worker_that_gets_garbage_or_loses_the_service_exits(garbage: bytes) -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "service.engine_worker", "--fd", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE) as child:
        theirs.close()
        ours.sendall(garbage)
        ours.shutdown(socket.SHUT_WR)
        assert child.wait(LIMIT_S) == (0 if len(garbage) == 6 else 1)


def test_a_worker_that_loses_a_thread_exits() -> None:
    code = """
import threading
from service.engine_worker.__main__ import end_with_any_thread
end_with_any_thread()
threading.Thread(target=lambda: 1 / 0).start()
threading.Event().wait()
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_child_ignores_ctrl_c_and_obeys_sigterm(number: signal.Signals) -> None:
    async with running(first_pause=timedelta(milliseconds=10)) as (host, reader):
        pid = host.pid
        assert pid is not None and os.getsid(pid) != os.getsid(0)
        host.submit(job("a", FOREVER))
        await reader.output("a")
        os.kill(pid, number)
        if number is signal.SIGTERM:
            assert "exited with code 0" in (await reader.down()).cause
        else:
            host.submit(job("b", said(pieces=["b"])))
            assert (await reader.end("b")).reason is EndReason.EOS and host.pid == pid


PARENT = """
import anyio
from service.runtime.engine_process import EngineProcess, EngineProcessSettings

async def main():
    host = EngineProcess(EngineProcessSettings("scripted"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        await host.receive()
        print(host.pid, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def test_the_child_does_not_outlive_a_killed_parent() -> None:
    command = [sys.executable, "-c", textwrap.dedent(PARENT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        ready, _, _ = select.select([child], [], [], LIMIT_S)  # readable when the process has ended
        assert ready
    finally:
        os.close(child)


async def test_cancel_of_run_ends_a_child_that_still_loads_or_hangs() -> None:
    async with running({"load_hangs": True}, wait_up=False) as (host, _):
        with anyio.fail_after(LIMIT_S):
            while host.pid is None:
                await anyio.lowlevel.checkpoint()
    async with running(close_limit=timedelta(milliseconds=200)) as (host, reader):
        host.submit(job("a", said(pieces=["a"], repeat=2, hang_after=1)))
        await reader.output("a")


async def test_the_childs_stderr_reaches_the_log_and_the_cause() -> None:
    lines: list[str] = []
    settings = EngineProcessSettings("scripted", first_pause=timedelta(milliseconds=10))
    host = EngineProcess(settings, on_log=lines.append)
    reader = Reader(host)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.run)
        await reader.up()
        host.submit(job("a", said(pieces=["a"], fail_after=0, fail_message="these words")))
        await reader.end("a")
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        assert "these words" in (await reader.down()).cause
        assert any("these words" in line for line in lines)
        tasks.cancel_scope.cancel()
