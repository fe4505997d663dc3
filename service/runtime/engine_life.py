"""One engine process from its start to its end: spawn, stderr, close, kill, reap.

It does not know what the process is told and answers (`engine_link` carries that), nor whether
another one follows (`engine_process`).

The child has a session of its own, so that Ctrl-C on the terminal, and a process manager's signal to
our process group, reach the service alone: it drains first and ends the child itself. The child
notices our death by the end of the socket (and on Linux is killed by the kernel), so it never stays.
"""

from __future__ import annotations

import codecs
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import anyio
import anyio.abc

from service.engine_frames import Close
from service.runtime.engine_link import EngineLink

_TAIL_CHARS = 2000
"""How much of what the child said last goes into the cause."""
_MAX_LINE_CHARS = 8192
_LAST_WORDS_S = 1.0
"""For the rest of stderr after the end: a process of the child's own may hold the pipe open."""
_REAP_LIMIT_S = 5.0
"""A killed process is gone in milliseconds, but for one in a driver's uninterruptible wait."""


@dataclass(slots=True)
class EngineLife:
    """Made by `start`. `over` says that it must end or has; `stop` ends it."""

    process: anyio.abc.Process
    link: EngineLink
    over: anyio.Event = field(default_factory=anyio.Event)
    loaded: anyio.Event = field(default_factory=anyio.Event)
    good: bool = False
    """Whether it has shown that it works."""
    _cause: str = ""
    """Why we end it; empty when it goes by itself."""
    _tail: str = ""
    """The end of what it wrote to stderr."""
    _log_read: anyio.Event = field(default_factory=anyio.Event)

    @classmethod
    async def start(cls) -> EngineLife:
        """Start a fresh interpreter (never a fork: gRPC and CUDA do not survive one). Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            link = await EngineLink.open(ours)
            try:
                process = await anyio.open_process(
                    [sys.executable, "-m", "service.engine_worker", "--fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except BaseException:
                link.close()
                raise
        return cls(process, link)

    @property
    def up(self) -> bool:
        """Whether it is loaded and not about to end."""
        return self.loaded.is_set() and not self.over.is_set()

    def end(self, cause: str) -> None:
        """Say that it must end; the first cause counts."""
        self._cause = self._cause or cause
        self.over.set()

    async def stop(self, close_limit: timedelta) -> None:
        """End the process: by a close, then by SIGKILL. Returns when it is reaped; may be repeated.

        One that is ended for a cause gets no time to close.
        """
        process = self.process
        self.link.detach()
        if process.returncode is None and not self._cause:
            self.link.send(Close())
            with anyio.move_on_after(close_limit.total_seconds()):
                await process.wait()
        self.link.close()
        if process.returncode is None:
            process.kill()
            with anyio.move_on_after(_REAP_LIMIT_S):
                await process.wait()

    async def last_words(self) -> None:
        """Wait, not for long, until all of stderr has been read; after `stop`."""
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._log_read.wait()

    async def read_log(self, on_log: Callable[[str], None]) -> None:
        """Pass the child's stderr on, line by line, and keep its end."""
        assert self.process.stderr is not None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        async with self.process.stderr as stderr:
            async for chunk in stderr:
                text = decoder.decode(chunk)
                self._tail = (self._tail + text)[-_TAIL_CHARS:]
                *lines, rest = (rest + text).split("\n")
                if len(rest) > _MAX_LINE_CHARS:
                    lines, rest = [*lines, rest], ""
                for line in lines:
                    on_log(line)
        if rest:
            on_log(rest)
        self._log_read.set()

    def describe_end(self) -> str:
        """Say why the process ended, with its last words. For the log."""
        code = self.process.returncode
        if self._cause:
            text = self._cause
        elif code is None:
            text = "the engine's process could not be ended"
        elif code < 0:
            text = f"the engine's process was killed by {signal.Signals(-code).name}"
        else:
            text = f"the engine's process exited with code {code}"
        tail = self._tail.strip()
        return f"{text}; it last said: {tail}" if tail else text
