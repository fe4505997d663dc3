"""A load tool that others made for OpenAI's API, unchanged, on the real model: every answer comes whole."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from benchmarks.load_plan import LoadFailed
from benchmarks.load_test.report import Asked
from benchmarks.load_test.tokenizer import write_tokenizer
from benchmarks.load_test.tool import ENVIRONMENT, TEXT, TIMEOUT_S, is_installed, run_tool
from service.model_fetch import fetch
from tests.conformance.llm.programs import missing
from tests.support.pair import MODEL, Pair, running_pair

pytestmark = pytest.mark.engine
ASKED = Asked(requests=40, concurrency=4, input_tokens=32, output_tokens=8)
COUNT = (
    "import sys, tokenizers as t; print(len(t.Tokenizer.from_file(sys.argv[1]).encode(sys.stdin.read()).ids))"
)


@pytest.fixture(scope="module")
async def loaded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    if not is_installed():
        missing("`make setup-load` installs the load tool")
    service = {"engine": "llama_cpp", "engine_slots": "4", "engine_context_tokens": "1024"}
    async with running_pair(tmp_path_factory.mktemp("load"), service) as pair:
        yield pair


@pytest.mark.timeout(TIMEOUT_S + 20)
async def test_every_request_of_a_load_tool_gets_its_whole_answer(loaded: Pair) -> None:
    before = len(loaded.edge.log)
    findings = await run_tool(loaded.edge.url, MODEL, fetch(), ASKED)
    count, *_, first_token = findings.amounts
    assert count.values == (ASKED.requests,) and len(first_token.values) == ASKED.requests
    lines = [json.loads(line) for line in loaded.edge.log[before:].splitlines() if line.startswith("{")]
    statuses = [
        line["status"] for line in lines if (line["event"], line.get("method")) == ("http_request", "POST")
    ]
    assert set(statuses) == {200} and len(statuses) >= ASKED.requests


async def test_refusals_are_told(loaded: Pair) -> None:
    with pytest.raises(LoadFailed, match="4 of 4 requests failed: HTTP 400"):
        await run_tool(loaded.edge.url, MODEL, fetch(), Asked(4, 4, 2000, 8))


async def test_the_tokenizer_made_for_the_tool_counts_as_the_server_does(
    loaded: Pair, tmp_path: Path
) -> None:
    text = TEXT.read_text()[:2000] + " 1234 naïve 한글 🙂\n\tif x:"
    path = write_tokenizer(fetch(), tmp_path)
    command = [str(ENVIRONMENT / "bin" / "python"), "-c", COUNT, str(path)]
    counted = int((await anyio.run_process(command, input=text.encode())).stdout)
    body = {"model": MODEL, "prompt": text, "max_tokens": 1}
    answer = await loaded.http.post(f"{loaded.edge.url}/v1/completions", json=body)
    assert answer.json()["usage"]["prompt_tokens"] == counted
