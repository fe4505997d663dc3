"""The official clients on the real model: what a user of the demo sees. Few tokens each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import jsonschema
import pytest

from tests.conformance.llm.programs import Program
from tests.support.dialects import CHAT, MESSAGES
from tests.support.pair import Pair, running_pair

pytestmark = pytest.mark.engine
PROMPT = "Count from one to ten."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    service = {
        "engine": "llama_cpp",
        "engine_slots": "2",
        "engine_context_tokens": "512",
        "engine_threads": "1",
    }
    async with running_pair(tmp_path_factory.mktemp("real"), service) as running:
        running.http.timeout = 100
        yield running


async def test_streams_and_whole_answers_agree(real: Pair, python: Program, old_python: Program) -> None:
    greedy = {"temperature": 0, "max_tokens": 12}
    for client in ("chat", "completions", "messages"):
        program = old_python if client == "messages" else python  # the newer SDK has no temperature
        streamed = await program.ask(client, "stream", real.edge.url, PROMPT, options=greedy)
        whole = await program.ask(client, "whole", real.edge.url, PROMPT, options=greedy)
        assert streamed.error is None and whole.error is None
        assert streamed.text == whole.text and whole.text.strip()
        assert whole.usage is not None and whole.usage[1] <= 12


async def test_an_output_follows_its_schema(real: Pair, python: Program) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    options = {"response_format": form, "max_tokens": 60, "temperature": 0}
    report = await python.ask("chat", "parse", real.edge.url, "Name a city.", options=options)
    assert report.error is None
    jsonschema.validate(json.loads(report.text), SCHEMA)
    options["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    refused = await python.ask("chat", "parse", real.edge.url, "Name a city.", options=options)
    assert refused.error is not None and refused.error["status"] == 400
    assert refused.error["body"]["param"] == "response_format"


async def test_log_probabilities_of_a_real_model(real: Pair, python: Program) -> None:
    options = {"logprobs": True, "top_logprobs": 2, "max_tokens": 5, "temperature": 0}
    report = await python.ask("chat", "whole", real.edge.url, PROMPT, options=options)
    assert report.error is None
    tokens = report.extra[0]["logprobs"]["content"]
    assert len(tokens) == 5 and all(token["logprob"] <= 0 for token in tokens)
    assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == report.text


async def test_b157_tokens_are_counted_by_the_real_tokenizer(real: Pair) -> None:
    body = MESSAGES.body(PROMPT, max_tokens=2)
    answer = await real.http.post(real.edge.url + MESSAGES.path, json=body)
    counted = await real.http.post(real.edge.url + "/v1/messages/count_tokens", json=body)
    chat = await real.http.post(real.edge.url + CHAT.path, json=CHAT.body(PROMPT, max_tokens=2))
    count = counted.json()["input_tokens"]
    assert count == answer.json()["usage"]["input_tokens"] == chat.json()["usage"]["prompt_tokens"]
