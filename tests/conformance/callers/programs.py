"""The programs of `.venv-callers`, run as processes of their own: `make setup-callers` installs them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.processes import ROOT

FOLDER = Path(__file__).parent
BIN = ROOT / ".venv-callers" / "bin"
START_S = 60
CASE_S = 40
MAX_REPORT_BYTES = 4 * 1024 * 1024


def require_callers() -> None:
    """Skip where they are not installed, but never in CI."""
    if not (BIN / "python").exists():
        reason = "`make setup-callers` installs Replicate's generated Python client and the OpenAPI tester"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


class Py2:
    """Replicate's generated Python client in one process: a case in, a report out, line by line."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def ready(self) -> None:
        """Return once it has imported the client."""
        with anyio.fail_after(START_S):
            await self._stdout.receive_until(b"\n", MAX_REPORT_BYTES)

    async def run(self, case: str, base_url: str, **argument: object) -> Report:
        """Run one case of `replicate_py2.py`."""
        line = json.dumps({"case": case, "base_url": f"{base_url}/v1", "argument": argument})
        with anyio.fail_after(CASE_S):
            await self._stdin.send(line.encode() + b"\n")
            printed = json.loads(await self._stdout.receive_until(b"\n", MAX_REPORT_BYTES))
        return Report(printed.get("result"), printed.get("error"), printed["calls"])


class Report:
    """What a case brought, or its error, and the HTTP calls that were made."""

    def __init__(self, result: Any, error: dict[str, Any] | None, calls: list[dict[str, Any]]) -> None:
        self.result = result
        self.error = error
        self.calls = calls


@asynccontextmanager
async def running_py2() -> AsyncIterator[Py2]:
    """Run the client's process until the block ends."""
    inherited = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    async with await anyio.open_process(
        [str(BIN / "python"), "-u", str(FOLDER / "replicate_py2.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=inherited | {"REPLICATE_API_TOKEN": "r8_conformance"},
    ) as process:
        try:
            client = Py2(process)
            await client.ready()
            yield client
        finally:
            process.kill()
