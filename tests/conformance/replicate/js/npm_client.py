"""Replicate's npm client as a process: installed once from the lock file, one run a case."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from tests.support import npm

FOLDER = Path(__file__).parent
RUN_S = 30


@dataclass(frozen=True)
class Report:
    """What one case printed."""

    result: Any
    error: dict[str, Any] | None
    calls: list[dict[str, Any]]


async def run_case(case: str, base_url: str, limit_s: float = RUN_S, **argument: object) -> Report:
    """Run one case of `run.mjs`."""
    command = ["node", "run.mjs", case, f"{base_url}/v1", json.dumps(argument)]
    with anyio.fail_after(limit_s):
        done = await anyio.run_process(command, cwd=FOLDER, check=False)
    assert done.returncode == 0, done.stderr.decode()
    printed = json.loads(done.stdout)
    return Report(printed.get("result"), printed.get("error"), printed["calls"])


async def install() -> None:
    """Install the locked packages unless they are there. Without Node.js skip, but never in CI."""
    await npm.install(FOLDER)
