"""npm packages that tests need: installed from a folder's lock file, once."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import anyio
import pytest

from tests.support.processes import ROOT

TYPESCRIPT = ROOT / "clients" / "typescript"
INSTALL_S = 110
RUN_S = 110


async def run(*command: str, folder: Path = TYPESCRIPT) -> str:
    """Run a program of a folder's packages there, and return what it printed. It must succeed."""
    program = folder / "node_modules" / ".bin" / command[0]
    with anyio.fail_after(RUN_S):
        done = await anyio.run_process([str(program), *command[1:]], cwd=folder, check=False)
    printed = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, printed
    return printed


async def install(folder: Path) -> None:
    """Install the locked packages unless they are there. Without Node.js skip, but never in CI."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        reason = f"Node.js and npm are needed for {folder.relative_to(ROOT)}"
        if os.environ.get("CI") and not os.environ.get("TAILRACE_NO_NODE"):
            pytest.fail(reason)
        pytest.skip(reason)
    lock = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    mark = folder / "node_modules" / ".tailrace-lock"
    if mark.exists() and mark.read_text() == lock:
        return
    with anyio.fail_after(INSTALL_S):
        done = await anyio.run_process(["npm", "ci"], cwd=folder, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    mark.write_text(lock)
