"""A hand-driven engine host: the test says what the engine reports, and when.

For interleavings that no real engine can be made to produce on demand. Its promises 2 and 3 are
those of `service.ports.engine_host`; what it does not have is a process.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from service.domain.request import ChatPrompt, Constraint, JsonSchema, Prompt, TextPrompt, TokenPrompt
from service.ports.engine import Capability, ConstraintError, EndReason, EngineInfo
from service.ports.engine_host import (
    EngineDown,
    EngineUp,
    HostEvent,
    HostJob,
    JobEnded,
    JobOutput,
)


def info(slots: int = 2, context_tokens: int = 1000) -> EngineInfo:
    """Return an engine that can do everything."""
    capabilities = frozenset(c.value for c in Capability)
    return EngineInfo(
        "manual",
        slots,
        context_tokens,
        256,
        chat_template=True,
        capabilities=capabilities,
        tool_format="hermes",
    )


class ManualHost:
    """Implements `EngineHost`. A prompt's token count is its number of characters."""

    def __init__(self, slots: int = 2, context_tokens: int = 1000) -> None:
        self.info = info(slots, context_tokens)
        self.jobs: dict[str, HostJob] = {}
        """Submitted and not ended, by job id."""
        self.history: list[HostJob] = []
        self.canceled: list[str] = []
        self._pending: list[HostEvent] = []
        self._news = anyio.Event()
        self._submitted = anyio.Event()

    async def run(self) -> None:
        """Come up, and stay until cancelled."""
        self.up()
        await anyio.sleep_forever()

    async def receive(self) -> Sequence[HostEvent]:
        """Return all that the test has reported since the last call."""
        while not self._pending:
            await self._news.wait()
        self._news = anyio.Event()
        pending, self._pending = self._pending, []
        return pending

    def submit(self, job: HostJob) -> None:
        """Take a job; the test ends it."""
        if any(isinstance(event, EngineDown) for event in self._pending):
            return  # void: the caller has yet to hear that the engine is gone
        assert job.id not in self.jobs, "a job id was used twice"
        assert len(self.jobs) < self.info.slots, "more jobs than slots (I9)"
        self.jobs[job.id] = job
        self.history.append(job)
        submitted, self._submitted = self._submitted, anyio.Event()
        submitted.set()

    def cancel(self, job_id: str) -> None:
        """Note a cancel; the test confirms it with `end`."""
        self.canceled.append(job_id)

    async def count(self, prompt: Prompt, constraint: Constraint | None = None) -> int:
        """Return the number of characters or ids; a constraint that holds `nonsense` is refused."""
        if isinstance(constraint, JsonSchema) and "nonsense" in constraint.schema:
            raise ConstraintError("json_schema is not valid")
        match prompt:
            case TextPrompt(text):
                return len(text)
            case TokenPrompt(token_ids):
                return len(token_ids)
            case ChatPrompt(messages):
                return sum(len(message.content) for message in messages)

    # -- what the test does ---------------------------------------------------------------------

    def report(self, *events: HostEvent) -> None:
        """Let the engine report `events` as one step."""
        self._pending.extend(events)
        self._news.set()

    def up(self) -> None:
        """Report a loaded engine."""
        self.report(EngineUp(self.info))

    def down(self, *, final: bool = False) -> None:
        """Lose the process: its jobs are void."""
        self.jobs.clear()
        self.report(EngineDown("killed by the test", final=final))

    def put_out(self, job: HostJob, *texts: str) -> None:
        """Report outputs of one token each, whose id is the first character's code."""
        self.report(*(JobOutput(job.id, text, (ord(text[0]),), 1) for text in texts))

    def end(self, job: HostJob, reason: EndReason = EndReason.EOS, *, output_tokens: int = 0) -> None:
        """Report the end of a job."""
        self.jobs.pop(job.id, None)
        self.report(JobEnded(job.id, reason, input_tokens=1, output_tokens=output_tokens))

    async def next_job(self, nth: int = 1) -> HostJob:
        """Wait until `nth` jobs have been submitted in all; return that one."""
        while len(self.history) < nth:
            await self._submitted.wait()
        return self.history[nth - 1]
