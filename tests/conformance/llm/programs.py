"""The official clients as long-lived processes: what to ask in, what came out, line by line."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support import npm
from tests.support.pair import MODEL
from tests.support.processes import ROOT

FOLDER = Path(__file__).parent
JS = FOLDER / "js"
SDKS = ROOT / ".venv-sdks"
PYTHON_COMMAND = [str(SDKS / "bin" / "python"), str(FOLDER / "python" / "sdks.py")]
ASK_S = 40
MAX_REPORT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Report:
    """What came."""

    text: str
    finish: str | None
    usage: list[int] | None
    extra: Any
    error: dict[str, Any] | None
    id: str | None = None
    requests: int = 0
    calls: Any = None
    """Of an ask with tools: id, name and arguments each."""

    kinds: Any = None
    """Of an ask with tools: the order of texts and calls, where the API keeps it."""

    then: str | None = None
    """Of an ask with tools: the text after the results."""


class Program:
    """One process."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> dict[str, Any]:
        """Return what it printed."""
        with anyio.fail_after(ASK_S):
            printed: dict[str, Any] = json.loads(await self._stdout.receive_until(b"\n", MAX_REPORT_BYTES))
            return printed

    async def ask(
        self, client: str, call: str, base: str, prompt: str = "", *, options: object = None, **more: object
    ) -> Report:
        """Have one of its clients ask once."""
        given = {"client": client, "call": call, "base": base, "prompt": prompt, "model": MODEL}
        line = json.dumps({**given, "options": options or {}, **more})
        await self._stdin.send(line.encode() + b"\n")
        return Report(**await self.line())

    async def abort(self) -> None:
        """Have it abort what it asks at the moment."""
        await self._stdin.send(b"abort\n")


@asynccontextmanager
async def running(command: list[str], folder: Path) -> AsyncGenerator[Program, None]:
    """Run a program until the block ends."""
    process = await anyio.open_process(command, cwd=folder, stderr=None)
    try:
        program = Program(process)
        await program.line()  # it has imported its clients
        yield program
    finally:
        process.kill()
        await process.wait()


def require_sdks() -> None:
    """Skip where the Python clients are not installed, but never in CI."""
    if not (SDKS / ".installed").exists():
        missing("`make setup-sdks` installs the official OpenAI and Anthropic clients")


def missing(reason: str) -> None:
    """Skip, or fail in CI."""
    if os.environ.get("CI") and not os.environ.get("TAILRACE_NO_NODE"):
        pytest.fail(reason)
    pytest.skip(reason)


async def install_npm() -> None:
    """Install the locked npm packages unless they are there."""
    await npm.install(JS)
