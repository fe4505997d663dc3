"""The TypeScript client: its types hold, it can be built, and it passes its own tests (vitest)."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from tests.support.npm import TYPESCRIPT, run

pytestmark = pytest.mark.node


async def test_its_types_hold() -> None:
    await run("tsc", "--noEmit")


async def test_it_passes_its_own_tests(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    await run("vitest", "run", "--reporter=default", "--reporter=json", f"--outputFile.json={report}")
    counts = json.loads(report.read_text())
    assert counts["success"] and counts["numPassedTests"] == counts["numTotalTests"] > 0


async def test_it_is_built_with_its_types_and_needs_no_package(tmp_path: Path) -> None:
    await run("tsc", "-p", "tsconfig.build.json", "--outDir", str(tmp_path))
    exported = json.loads((TYPESCRIPT / "package.json").read_text())["exports"]
    for entry in exported.values():
        for path in entry.values():
            assert (tmp_path / Path(path).name).is_file()
    script = "import(process.argv[1]).then((all) => console.log(Object.keys(all).sort().join()))"
    command = ["node", "--input-type=module", "--eval", script, (tmp_path / "index.js").as_uri()]
    done = await anyio.run_process(command, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert {"Anthropic", "OpenAI", "Replicate"} <= set(done.stdout.decode().strip().split(","))
