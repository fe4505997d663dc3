"""The official clients on the real model: what a user of the demo sees. Few tokens each."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import jsonschema
import pytest

from tests.conformance.llm.programs import Program
from tests.support.chat_templates import HERMES_FILE
from tests.support.dialects import CHAT, MESSAGES
from tests.support.pair import Pair, running_pair

pytestmark = pytest.mark.engine
PROMPT = "Count from one to ten."
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Ulm", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "get_weather", "description": "Tell the weather in a city.", "parameters": CITY},
    {"name": "get_time", "description": "Tell the time.", "parameters": {"type": "object", "properties": {}}},
]
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


@pytest.fixture(scope="module")
async def with_tools(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """The same model with a template that knows tools."""
    service = {
        "engine": "llama_cpp",
        "engine_slots": "2",
        "engine_context_tokens": "2048",
        "engine_threads": "1",
        "chat_template_file": str(HERMES_FILE),
    }
    async with running_pair(tmp_path_factory.mktemp("with-tools"), service) as running:
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


@pytest.mark.parametrize("client", ["chat", "responses", "messages"])
@pytest.mark.parametrize("call", ["helper", "whole"])
async def test_a_forced_call_keeps_its_schema(
    with_tools: Pair, python: Program, client: str, call: str
) -> None:
    asked = {"tools": TOOLS, "choice": "get_weather"}
    report = await python.ask(client, call, with_tools.edge.url, "How is the weather in Ulm?", **asked)
    assert report.error is None, report.error
    ((call_id, name, arguments),) = report.calls
    jsonschema.validate(json.loads(arguments), CITY)
    assert call_id and name == "get_weather" and not report.text


async def test_a_call_of_any_tool_and_its_result(with_tools: Pair, python: Program) -> None:
    asked = {"tools": TOOLS, "choice": "required", "result": "Sunny.", "options": {"max_tokens": 40}}
    report = await python.ask("chat", "whole", with_tools.edge.url, "How is the weather in Ulm?", **asked)
    assert report.error is None, report.error
    ((_, name, _),) = report.calls
    assert name in ("get_weather", "get_time") and report.then is not None


async def test_tools_are_counted_by_the_real_tokenizer(with_tools: Pair) -> None:
    tools = [{"name": t["name"], "input_schema": t["parameters"]} for t in TOOLS]
    body = MESSAGES.body(PROMPT, max_tokens=2)
    url = with_tools.edge.url + MESSAGES.path
    answer = await with_tools.http.post(url, json=body | {"tools": tools})
    counted = await with_tools.http.post(f"{url}/count_tokens", json=body | {"tools": tools})
    bare = await with_tools.http.post(f"{url}/count_tokens", json=body)
    count = counted.json()["input_tokens"]
    assert count == answer.json()["usage"]["input_tokens"] > bare.json()["input_tokens"]


async def test_a_prefill_is_continued(real: Pair) -> None:
    begun = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "One, two, three,"}]
    for dialect, fields in ((MESSAGES, {}), (CHAT, {"continue_final_message": True})):
        body = dialect.body("", messages=begun, max_tokens=6, temperature=0, **fields)
        answer = await real.http.post(real.edge.url + dialect.path, json=body)
        assert answer.status_code == 200, answer.text
        assert "four" in dialect.whole(answer.json()).lower()


async def test_the_demo_model_s_own_template_takes_no_tools(real: Pair, python: Program) -> None:
    report = await python.ask("chat", "whole", real.edge.url, "x", tools=TOOLS)
    assert report.error is not None and report.error["body"]["param"] == "tools"
