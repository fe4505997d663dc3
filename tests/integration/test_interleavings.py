"""Any interleaving of output, end, cancel, deadline, caller's going and engine loss keeps I1 to I9."""

from __future__ import annotations

from datetime import timedelta

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.events import Completed, Entry, Output, Status
from service.ports.engine import EndReason
from service.ports.engine_host import HostJob
from tests.support.manual_host import ManualHost
from tests.support.runtime import Runtime, end_of, new, read_all, running, text_of

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["create", "attached", "deadline", "output", "output", "output", "end", "length", "fail",
             "cancel", "leave", "down", "yield"]
        ),
        st.integers(0, 5),
    ),
    max_size=40,
)  # fmt: skip


class World:
    """Carries the steps out and remembers what must come of them."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.tasks = tasks
        self.ids: list[str] = []
        self.accepted_cancels: set[str] = set()
        self.letters = iter(range(10**6))
        self.leave: dict[str, anyio.Event] = {}

    def job(self, n: int) -> HostJob | None:
        jobs = list(self.runtime.host.jobs.values())
        return jobs[n % len(jobs)] if jobs else None

    async def step(self, kind: str, n: int) -> None:
        host = self.runtime.host
        job = self.job(n)
        match kind:
            case "create" | "attached" | "deadline" if len(self.ids) < 6:
                await self.create(kind)
            case "output" if job:
                host.put_out(job, f"{next(self.letters)} ")
            case "end" if job:
                host.end(job)
            case "length" if job:
                host.end(job, EndReason.LENGTH)
            case "fail" if job:
                host.end(job, EndReason.FAILED)
            case "cancel" if self.ids:
                self.tasks.start_soon(self.runtime.predictions.cancel, self.ids[n % len(self.ids)])
            case "leave" if self.leave:
                self.leave[list(self.leave)[n % len(self.leave)]].set()
            case "down":
                host.down()
                host.up()
        await anyio.lowlevel.checkpoint()

    async def create(self, kind: str) -> None:
        after = timedelta(seconds=0.002) if kind == "deadline" else None
        created = await self.runtime.predictions.create(new(attached=kind == "attached", cancel_after=after))
        self.ids.append(created.prediction.id)
        if kind == "attached":
            gone = self.leave[created.prediction.id] = anyio.Event()
            await self.tasks.start(self.hold, created.prediction.id, gone)

    async def hold(self, prediction_id: str, gone: anyio.Event, *, task_status: anyio.abc.TaskStatus) -> None:
        async with self.runtime.predictions.open_log(prediction_id, attach=True):
            task_status.started()
            await gone.wait()

    async def end_all(self) -> None:
        """Let the engine end whatever is left, slot by slot."""
        for gone in self.leave.values():
            gone.set()
        host = self.runtime.host
        for prediction_id in self.ids:
            while not (await self.runtime.predictions.get(prediction_id)).status.terminal:
                for job in list(host.jobs.values()):
                    host.end(job)
                with anyio.move_on_after(0.002):
                    await self.runtime.predictions.get(prediction_id, timedelta(seconds=5))


def check(
    entries: list[Entry], again: list[Entry], status: Status, host: ManualHost, prediction_id: str
) -> None:
    end = end_of(entries)
    assert again == entries
    assert end.status is status
    pieces = [e.event.text for e in entries if isinstance(e.event, Output)]
    numbers = [int(word) for piece in pieces for word in piece.split()]
    assert numbers == sorted(set(numbers)), "lost order, or repeated"
    resumed = [job.text for job in host.history if job.id.startswith(prediction_id)]
    assert all(text_of(entries).startswith(text) for text in resumed)
    assert isinstance(entries[-1].event, Completed)


async def play(steps: list[tuple[str, int]]) -> None:
    with anyio.fail_after(20):
        async with running(claim_limit=100) as runtime, anyio.create_task_group() as tasks:
            world = World(runtime, tasks)
            for kind, n in steps:
                await world.step(kind, n)
            await world.end_all()
            for prediction_id in world.ids:
                record = await runtime.predictions.get(prediction_id)
                logs = []
                for _ in range(2):
                    async with runtime.predictions.open_log(prediction_id) as cursor:
                        logs.append(await read_all(cursor))
                check(logs[0], logs[1], record.status, runtime.host, prediction_id)
                stored = await runtime.predictions.read_output(prediction_id)
                assert "".join(stored.pieces) == text_of(logs[0])
            for job in list(runtime.host.jobs.values()):
                runtime.host.end(job)
            while runtime.dispatcher.running:
                await anyio.lowlevel.checkpoint()
            assert runtime.dispatcher.waiting == 0


@settings(max_examples=150)
@given(STEPS)
def test_any_interleaving_keeps_the_invariants(steps: list[tuple[str, int]]) -> None:
    anyio.run(play, steps)
