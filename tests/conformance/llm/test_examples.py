"""The examples in the docs run as they stand, but for the address."""

from __future__ import annotations

import json
import re
import subprocess

import anyio
import pytest

from tests.conformance.llm.programs import JS, SDKS, install_npm, require_sdks
from tests.support.pair import LIMIT_S, Pair, script
from tests.support.processes import ROOT

EXAMPLE = re.compile(r"^```((?:python|js)(?: tools)?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("openai", "anthropic")
QUESTION = "How is the weather in Ulm?"
CALL = script(pieces=['{"name": "get_weather", "arguments"', ': {"city": "Ulm"}}'])
"""What a model says that must call."""

each = pytest.mark.parametrize("page", PAGES)
in_both = pytest.mark.parametrize("language", ["python", pytest.param("js", marks=pytest.mark.node)])


@each
@in_both
async def test_the_example_streams_an_answer(pair: Pair, page: str, language: str) -> None:
    said = await run(pair, language, example(page, language))
    assert len(said.split()) > 20


@each
@in_both
async def test_the_example_with_tools_has_its_call(pair: Pair, page: str, language: str) -> None:
    code = example(page, f"{language} tools")
    assert f'"{QUESTION}"' in code
    said = await run(pair, language, code.replace(f'"{QUESTION}"', json.dumps(CALL)))
    assert "get_weather" in said and "Ulm" in said


def example(page: str, name: str) -> str:
    text = (ROOT / "docs" / "api" / f"{page}.md").read_text()
    (code,) = [code for found, code in EXAMPLE.findall(text) if found == name]
    assert isinstance(code, str)
    return code


async def run(pair: Pair, language: str, code: str) -> str:
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
    return done.stdout.decode()
