"""The examples in the TypeScript client's README hold for its types, and run but for the address."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.support.npm import TYPESCRIPT, run
from tests.support.pair import LIMIT_S, Pair, running_pair

pytestmark = pytest.mark.node

EXAMPLE = re.compile(r"^```(tsx?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall((TYPESCRIPT / "README.md").read_text())
PACKAGE = {
    "@tailrace/client": TYPESCRIPT / "src" / "index.ts",
    "@tailrace/client/react": TYPESCRIPT / "src" / "react.ts",
}


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path_factory.mktemp("pair")) as started:
        yield started


async def test_they_hold_for_its_types(tmp_path: Path) -> None:
    for number, (kind, code) in enumerate(EXAMPLES):
        (tmp_path / f"example_{number}.{kind}").write_text(code)
    (tmp_path / "node_modules").symlink_to(TYPESCRIPT / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    options = {"jsx": "react-jsx", "paths": {name: [str(path)] for name, path in PACKAGE.items()}}
    settings = {
        "extends": str(TYPESCRIPT / "tsconfig.json"),
        "compilerOptions": options | {"typeRoots": [str(TYPESCRIPT / "node_modules" / "@types")]},
        "include": ["*.ts", "*.tsx"],
    }
    (tmp_path / "tsconfig.json").write_text(json.dumps(settings))
    await run("tsc", "-p", str(tmp_path))


@pytest.mark.parametrize("number", [n for n, (kind, _) in enumerate(EXAMPLES) if kind == "ts"])
async def test_it_streams_an_answer(pair: Pair, tmp_path: Path, number: int) -> None:
    code = EXAMPLES[number][1].replace("http://127.0.0.1:8080", pair.edge.url)
    assert pair.edge.url in code
    (tmp_path / "example.ts").write_text(code)
    alias = f"--alias:@tailrace/client={PACKAGE['@tailrace/client']}"
    program = tmp_path / "example.mjs"
    source = str(tmp_path / "example.ts")
    await run("esbuild", source, "--bundle", "--format=esm", alias, f"--outfile={program}")
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(["node", str(program)], check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    assert len(done.stdout.decode().split()) > 20
