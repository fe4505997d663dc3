"""What the worker has to say, and the one thread that says it.

The first event is written at once; what comes while a write is under way goes into the next frame,
so a step's deltas share one and a slow service gets fewer, fuller ones. Nothing here waits for the
service: engine threads only append.

Bound: at most `slots` jobs run (the worker refuses more), none outlives its `max_tokens`, and the
service submits no new one before it has read the end of an old one. So a service that reads nothing
leaves at most slots x context tokens here. No frame holds more than `MAX_STEP_TOKENS`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain

from service.engine_frames import OutputDraft, Reply, StepDraft, pack
from service.ports.engine_host import JobEnded, JobPrefilled

MAX_MERGED_TOKENS = 256
MAX_STEP_TOKENS = 4096
"""With 20 alternatives at about 100 bytes each for every token, still below the frame limit."""


class Outbox:
    """Collect from any thread; `write` is called by the outbox's own thread alone."""

    def __init__(self, write: Callable[[bytearray], None]) -> None:
        """`write` sends one whole frame and may block; it does not return when it cannot."""
        self._write = write
        self._lock = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._idle = True
        self._replies: list[Reply] = []
        self._prefilled: list[JobPrefilled] = []
        self._outputs: list[OutputDraft] = []
        self._ended: list[JobEnded] = []

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._work, name="outbox", daemon=True).start()

    def reply(self, reply: Reply) -> None:
        """Say something that belongs to no job."""
        with self._lock:
            self._replies.append(reply)
            self._ring()

    def prefilled(self, event: JobPrefilled) -> None:
        """Say how far a prompt is; no output of that job may wait here yet."""
        with self._lock:
            self._prefilled.append(event)
            self._ring()

    def output(self, draft: OutputDraft) -> None:
        """Say what a job released."""
        with self._lock:
            self._outputs.append(draft)
            self._ring()

    def ended(self, event: JobEnded) -> None:
        """Say that a job is over; nothing of it may follow."""
        with self._lock:
            self._ended.append(event)
            self._ring()

    def flush(self) -> bool:
        """Write what waits, in the caller's thread; return whether there was anything."""
        with self._lock:
            replies, self._replies = self._replies, []
            step = StepDraft(self._prefilled, self._outputs, self._ended)
            self._prefilled, self._outputs, self._ended = [], [], []
            if not (replies or step.prefilled or step.outputs or step.ended):
                self._idle = True
                return False
        for reply in replies:
            self._write(pack(reply))
        if step.prefilled or step.outputs or step.ended:
            for part in _parts(step):
                self._write(pack(part))
        return True

    def _ring(self) -> None:
        if self._idle:
            self._idle = False
            self._wake.release()

    def _work(self) -> None:
        while True:
            self._wake.acquire()
            while self.flush():
                pass


def _parts(step: StepDraft) -> Iterator[StepDraft]:
    """Cut a step that is too large for one frame; ends go last."""
    outputs = merge(step.outputs)
    if len(outputs) * MAX_MERGED_TOKENS <= MAX_STEP_TOKENS or _tokens(outputs) <= MAX_STEP_TOKENS:
        yield StepDraft(step.prefilled, outputs, step.ended)
        return
    yield StepDraft(step.prefilled, [], [])
    part: list[OutputDraft] = []
    for draft in outputs:
        if part and _tokens(part) + draft.token_count > MAX_STEP_TOKENS:
            yield StepDraft([], part, [])
            part = []
        part.append(draft)
    yield StepDraft([], part, step.ended)


def _tokens(outputs: list[OutputDraft]) -> int:
    return sum(draft.token_count for draft in outputs)


def merge(outputs: list[OutputDraft]) -> list[OutputDraft]:
    """Join each job's outputs, in its order, up to `MAX_MERGED_TOKENS` in one."""
    if len({draft.job_id for draft in outputs}) == len(outputs):
        return outputs
    merged: list[list[OutputDraft]] = []
    open_groups: dict[str, tuple[list[OutputDraft], int]] = {}
    for draft in outputs:
        group, count = open_groups.get(draft.job_id, ([], 0))
        if not group or count + draft.token_count > MAX_MERGED_TOKENS:
            group, count = [], 0
            merged.append(group)
        group.append(draft)
        open_groups[draft.job_id] = group, count + draft.token_count
    return [_join(group) for group in merged]


def _join(group: list[OutputDraft]) -> OutputDraft:
    if len(group) == 1:
        return group[0]
    return OutputDraft(
        group[0].job_id,
        "".join(draft.text for draft in group),
        tuple(chain.from_iterable(draft.token_ids for draft in group)),
        sum(draft.token_count for draft in group),
        tuple(chain.from_iterable(draft.logprobs for draft in group)),
        group[-1].aligned,
    )
