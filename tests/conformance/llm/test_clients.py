"""What every official client must see, whichever of the APIs it speaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from protos.tailrace.v1.model_service_pb2 import GetModelRequest
from tests.conformance.llm.programs import Program, Report
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, script, until_idle

ENDLESS = script(pieces=["a "], repeat=100_000, delay_ms=10)
UNICODE = ["한글", "🙂", "x\u2028y", "\u0085", " \n", "\r\n", "  end"]


@dataclass(frozen=True)
class Client:
    """One client, and how it says things."""

    program: str
    name: str
    calls: tuple[str, ...]
    stop: str = "stop"
    limit: str = "max_tokens"
    ends: tuple[str, str, str] = ("stop", "stop", "length")
    """Finish of an end of turn, a stop string, a limit."""

    def __str__(self) -> str:
        return f"{self.program}-{self.name}"

    @property
    def is_messages(self) -> bool:
        """Whether it speaks Anthropic's API."""
        return self.name in ("messages", "ai-anthropic")


MESSAGE_ENDS = ("end_turn", "stop_sequence", "max_tokens")
BOTH = ("stream", "whole")
CLIENTS = (
    Client("python", "chat", ("stream", "helper", "whole")),
    Client("python", "completions", BOTH),
    Client("python", "responses", BOTH, "", "max_output_tokens", ("completed", "", "incomplete")),
    Client("python", "langchain", BOTH),
    Client("python", "messages", ("stream", "helper", "whole"), "stop_sequences", ends=MESSAGE_ENDS),
    Client("old_python", "messages", ("stream", "helper", "whole"), "stop_sequences", ends=MESSAGE_ENDS),
    Client("js", "chat", ("stream", "helper", "whole")),
    Client("js", "messages", ("helper", "whole"), "stop_sequences", ends=MESSAGE_ENDS),
    Client("js", "ai-compatible", BOTH, "stopSequences", "maxOutputTokens"),
    Client("js", "ai-openai", BOTH, "", "maxOutputTokens"),
    Client("js", "ai-anthropic", BOTH, "stopSequences", "maxOutputTokens"),
)
CASES = [
    pytest.param(
        client, call, id=f"{client}-{call}", marks=[pytest.mark.node] if client.program == "js" else []
    )
    for client in CLIENTS
    for call in client.calls
]
FIRST_CALLS = [case for case in CASES if case.values[1] == case.values[0].calls[0]]
WITHOUT_HELPERS = [case for case in CASES if case.values[1] != "helper" or case in FIRST_CALLS]
each = pytest.mark.parametrize(("client", "call"), CASES)


class Asker:
    """Asks a pair with a client."""

    def __init__(self, request: pytest.FixtureRequest, client: Client, call: str, pair: Pair) -> None:
        self._program: Program = request.getfixturevalue(client.program)
        self._client, self._call, self._pair = client, call, pair

    async def __call__(self, prompt: str, options: dict[str, Any] | None = None, **more: object) -> Report:
        given = dict(options or {})
        if self._client.name == "completions" and "max_tokens" not in given:
            given["max_tokens"] = 100_000
        if self._client.name == "langchain" and "stop" in given:
            given["stop_sequences"] = given.pop("stop")
        base = self._pair.edge.url
        with anyio.fail_after(LIMIT_S):
            return await self._program.ask(self._client.name, self._call, base, prompt, options=given, **more)

    async def abort(self) -> None:
        """Have the client go away."""
        await self._program.abort()


@pytest.fixture
def ask(request: pytest.FixtureRequest, client: Client, call: str, pair: Pair) -> Asker:
    return Asker(request, client, call, pair)


@pytest.fixture
def ask_tiny(request: pytest.FixtureRequest, client: Client, call: str, tiny: Pair) -> Asker:
    return Asker(request, client, call, tiny)


@pytest.fixture
def asker(request: pytest.FixtureRequest, program: str) -> Program:
    found: Program = request.getfixturevalue(program)
    return found


async def has_predictions(pair: Pair) -> bool:
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    return bool(page.predictions)


async def newest(pair: Pair) -> pb.Prediction:
    page = await pair.stubs.predictions.ListPredictions(rpc.ListPredictionsRequest(page_size=1))
    return page.predictions[0]


@each
async def test_an_ideal_answer(pair: Pair, ask: Asker, client: Client) -> None:
    report = await ask(script(pieces=UNICODE, delay_ms=3))
    assert report.error is None
    assert (report.text, report.finish) == ("".join(UNICODE), client.ends[0])
    record = await newest(pair)
    if report.usage is not None:
        assert report.usage == [record.usage.input_tokens, record.usage.output_tokens]
    assert report.id in (None, record.id)


@pytest.mark.parametrize(("client", "call"), [case for case in CASES if case.values[0].stop])
async def test_a_stop_string(pair: Pair, ask: Asker, client: Client) -> None:
    report = await ask(script(pieces=["ABC", "DEF", "G"], delay_ms=3), {client.stop: ["EFG"]})
    assert (report.error, report.text) == (None, "ABCD")
    assert report.finish == client.ends[1]
    if client.name == "messages":
        assert report.extra == "EFG"


@each
async def test_the_token_limit(pair: Pair, ask: Asker, client: Client) -> None:
    report = await ask(numbered(50)[0], {client.limit: 20})
    if report.error is not None and report.error["kind"] == "LengthFinishReasonError":
        return  # this helper refuses every answer that is cut
    assert (report.error, report.text) == (None, "".join(f"{n} " for n in range(20)))
    assert report.finish == client.ends[2]


@pytest.mark.parametrize(("client", "call"), FIRST_CALLS)
async def test_silence_is_bridged(pair: Pair, ask: Asker, call: str) -> None:
    prompt = script(pieces=["a ", "b"], first_delay_ms=1200, delay_ms=[0, 600])
    report = await ask(prompt)
    assert (report.error, report.text) == (None, "a b")


@each
async def test_a_failure_before_the_first_byte(pair: Pair, ask: Asker, client: Client) -> None:
    report = await ask(script(oom=True))
    assert report.error is not None and report.text == ""
    assert report.error["status"] == 500, report.error
    assert "out of memory" in str(report.error)


@each
async def test_a_failure_in_mid_stream(pair: Pair, ask: Asker, client: Client, call: str) -> None:
    prompt = script(pieces=["a ", "b "], delay_ms=[0, 0, 300], fail_after=2, fail_message="out of luck")
    report = await ask(prompt)
    assert report.error is not None, report
    assert client.name in ("responses",) or "out of luck" in str(report.error), report
    assert report.text == ("a b " if call == "stream" else "")


@pytest.mark.parametrize(("client", "call"), WITHOUT_HELPERS)
@pytest.mark.parametrize("phase", ["first token", "prefill", "middle"])
async def test_a_cancel_frees_the_slot(pair: Pair, ask: Asker, phase: str) -> None:
    prompts = {
        "first token": script(pieces=["a"], first_delay_ms=60_000),
        "prefill": script(pieces=["a"], prefill_ms=60_000, prefill_tokens=5),
        "middle": ENDLESS,
    }
    before = await newest(pair) if await has_predictions(pair) else None
    reports = []

    async def answer() -> None:
        reports.append(await ask(prompts[phase]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        while not await has_predictions(pair) or (
            (record := await newest(pair)) == before
            or record.status != pb.STATUS_PROCESSING
            or (phase == "middle" and record.usage.output_tokens < 5)
        ):
            await anyio.lowlevel.checkpoint()
        await ask.abort()
    assert reports[0].error == {"kind": "aborted"}
    with anyio.fail_after(5):
        await until_idle(pair.stubs)
    assert (await newest(pair)).status == pb.STATUS_CANCELED


@pytest.mark.parametrize(
    ("client", "call"),
    [case for case in FIRST_CALLS if case.values[0].name != "completions"],  # the same client as chat
)
async def test_overload_is_waited_out(tiny: Pair, ask_tiny: Asker) -> None:
    prompt, text = numbered(3)
    await until_idle(tiny.stubs)
    first = await tiny.api.create(ENDLESS)
    second = await tiny.api.create(ENDLESS)
    refused = await ask_tiny(prompt)
    assert refused.error is not None and refused.error["status"] == 429, refused.error

    async def make_room() -> None:
        while not tiny.edge.log[before:].count('"status": 429'):
            await anyio.sleep(0.02)  # a log gives no event to wait for
        await tiny.api.cancel(first)
        await tiny.api.cancel(second)

    before = len(tiny.edge.log)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(make_room)
        report = await ask_tiny(prompt, retries=3)
    assert (report.error, report.text) == (None, text)


async def test_models(pair: Pair, python: Program, old_python: Program) -> None:
    for program in (python, old_python):
        for client in ("openai-models", "anthropic-models"):
            report = await program.ask(client, "", pair.edge.url)
            assert (report.error, report.extra, report.text) == (None, [MODEL], MODEL)


@pytest.mark.parametrize("program", ["python", pytest.param("js", marks=pytest.mark.node)])
@pytest.mark.parametrize("call", ["helper", "whole"])
async def test_two_choices(pair: Pair, asker: Program, call: str) -> None:
    prompt, text = numbered(5, delay_ms=3)
    report = await asker.ask("chat", call, pair.edge.url, prompt, options={"n": 2})
    assert report.error is None
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in report.extra] == [
        (0, text, "stop"),
        (1, text, "stop"),
    ]


@pytest.mark.parametrize("program", ["python", pytest.param("js", marks=pytest.mark.node)])
@pytest.mark.parametrize("call", ["helper", "whole"])
async def test_log_probabilities(pair: Pair, asker: Program, call: str) -> None:
    options = {"logprobs": True, "top_logprobs": 3}
    report = await asker.ask("chat", call, pair.edge.url, script(pieces=["a", " b"]), options=options)
    assert report.error is None
    (choice,) = report.extra
    tokens = choice["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["a", " b"]
    assert all(len(token["top_logprobs"]) == 3 and token["logprob"] == -0.125 for token in tokens)


@pytest.mark.parametrize("call", ["stream", "whole"])
async def test_log_probabilities_of_a_response(pair: Pair, python: Program, call: str) -> None:
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 3}
    prompt = script(pieces=["a"], hex=["f09f", "9982", "62"])
    report = await python.ask("responses", call, pair.edge.url, prompt, options=options)
    assert (report.error, report.text) == (None, "a🙂b")
    entries, deltas = report.extra
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == report.text
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] == -0.125 for entry in entries)
    assert deltas == (entries if call == "stream" else [])
    plain = await python.ask("responses", call, pair.edge.url, prompt)
    assert (plain.error, plain.extra) == (None, [[], []])


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("call", ["parse", "whole", "stream"])
async def test_a_json_schema_reaches_the_engine(pair: Pair, python: Program, call: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
    prompt = script(pieces=['{"a"', ": 5}"])
    report = await python.ask("chat", call, pair.edge.url, prompt, options={"response_format": form})
    assert (report.error, report.text) == (None, '{"a": 5}')
    await has_schema(pair)


async def test_a_json_schema_of_other_apis(pair: Pair, python: Program) -> None:
    prompt = script(pieces=['{"a": 5}'])
    form = {"type": "json_schema", "schema": SCHEMA}
    options = {"text": {"format": {**form, "name": "x"}}}
    for client, given in (("responses", options), ("messages", {"output_config": {"format": form}})):
        report = await python.ask(client, "whole", pair.edge.url, prompt, options=given)
        assert (report.error, report.text) == (None, '{"a": 5}')
        await has_schema(pair)


async def has_schema(pair: Pair) -> None:
    found = await pair.stubs.predictions.GetPrediction(rpc.GetPredictionRequest(id=(await newest(pair)).id))
    assert '"integer"' in found.request.json_schema


@pytest.mark.parametrize("prefix", ["", "/anthropic"])
async def test_tokens_are_counted(pair: Pair, python: Program, prefix: str) -> None:
    prompt, _ = numbered(3)
    counted = await python.ask("messages", "count", pair.edge.url, prompt, prefix=prefix)
    whole = await python.ask("messages", "whole", pair.edge.url, prompt, prefix=prefix)
    assert counted.usage is not None and whole.usage is not None
    assert counted.usage[0] == whole.usage[0]


async def test_the_load_says_how_many_run(pair: Pair) -> None:
    await until_idle(pair.stubs)
    load = (await pair.stubs.models.GetModel(GetModelRequest(name=MODEL))).load
    assert (load.running, load.waiting) == (0, 0)
