"""The threads that render and tokenise prompts, so that neither commands nor tokens wait for one.

Bound: the worker has at most `slots` jobs, and refuses counts while `MAX_WAITING` tasks wait.
A thread cannot be stopped in Python: one that takes longer than the limit is given up and replaced,
and after `MAX_LOST` of them the process ends, which the service repairs.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

LIMIT_S = 30.0
"""Half the service's hang limit; the largest prompt (4 MiB) takes a few seconds."""
MAX_LOST = 4
MAX_WAITING = 256


class PromptThreadsLost(Exception):
    """Too many prompts never came to an end."""


@dataclass(slots=True)
class _Task:
    work: Callable[[], None]
    fail: Callable[[str], None]
    started: float | None = None
    given_up: bool = False


class PromptThreads:
    """Run work in a few threads. `expire` must be called from time to time."""

    def __init__(self, threads: int = 2, *, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._running: list[_Task] = []
        self._lost = 0
        for _ in range(threads):
            self._start()

    @property
    def full(self) -> bool:
        """Whether so much waits that no count should be added."""
        return self._tasks.qsize() >= MAX_WAITING

    def run(self, work: Callable[[], None], fail: Callable[[str], None]) -> None:
        """Call `work` in a thread; call `fail` with a text if it raises or takes too long."""
        self._tasks.put(_Task(work, fail))

    def expire(self) -> None:
        """Give up what takes too long. Raises `PromptThreadsLost` when that happens too often."""
        now = time.monotonic()
        for task in self._running.copy():
            if task.started is not None and now - task.started > self._limit_s and not task.given_up:
                task.given_up = True
                task.fail("the prompt took too long to prepare")
                self._lost += 1
                if self._lost > MAX_LOST:
                    raise PromptThreadsLost("too many prompts never came to an end")
                self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="prompts", daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            task.started = time.monotonic()
            self._running.append(task)
            try:
                task.work()
            except Exception as error:  # noqa: BLE001 - a thread of the engine: a bad prompt ends alone
                traceback.print_exc(file=sys.stderr)
                task.fail(f"the prompt could not be prepared: {type(error).__name__}")
            self._running.remove(task)
            if task.given_up:  # another thread has this one's place
                return
