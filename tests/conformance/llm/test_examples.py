"""The examples in the docs run as they stand, but for the address."""

from __future__ import annotations

import re
import subprocess

import anyio
import pytest

from tests.conformance.llm.programs import JS, SDKS, install_npm, require_sdks
from tests.support.pair import LIMIT_S, Pair
from tests.support.processes import ROOT

EXAMPLE = re.compile(r"^```(python|js)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("openai", "anthropic")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("language", ["python", pytest.param("js", marks=pytest.mark.node)])
async def test_the_example_streams_an_answer(pair: Pair, page: str, language: str) -> None:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    (code,) = [code for found, code in EXAMPLE.findall(text) if found == language]
    code = code.replace("http://127.0.0.1:8080", pair.edge.url)
    if language == "python":
        require_sdks()
        command = [str(SDKS / "bin" / "python"), "-c", code]
    else:
        await install_npm()
        command = ["node", "--input-type=module", "-e", code]
    with anyio.fail_after(LIMIT_S):
        done = await anyio.run_process(command, cwd=JS, check=False, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout.decode()
    assert len(done.stdout.decode().split()) > 20
