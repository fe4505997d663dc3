"""Tools through the whole service on the real model, with the chat template that we ship for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import grpc
import jsonschema
import pytest

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tailrace import AsyncClient
from tests.support.chat_templates import HERMES_FILE
from tests.support.processes import Service, Stubs, client, running_service
from tests.support.rpc import failure
from tests.support.streams import Log, create, disturb, follow

pytestmark = [pytest.mark.anyio, pytest.mark.engine, pytest.mark.timeout(600)]
MODEL = Service.MODEL
ORDER = {
    "type": "object",
    "properties": {
        "dish": {"type": "string", "maxLength": 60},
        "size": {"enum": ["small", "large"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "notes": {"type": "string", "maxLength": 60},
    },
    "required": ["dish", "size", "count", "notes"],
    "additionalProperties": False,
}
TOOL = pb.Tool(name="order", description="Order food.", parameters=json.dumps(ORDER))
OTHER = pb.Tool(name="wait", description="Wait.")
ASKED = pb.ChatMessage(role="user", content="I would like two large pizzas with olives, please.")


def ask(*tools: pb.Tool, forced: str | None = None, **sampling: float) -> pb.GenerationRequest:
    """Return a chat with tools."""
    chosen = None if forced is None else pb.ForcedTool(name=forced)
    return pb.GenerationRequest(
        chat=pb.ChatInput(messages=[ASKED], tools=tools, forced_tool=chosen),
        sampling=pb.Sampling(**(sampling or {"temperature": 0})),
        stopping=pb.Stopping(max_tokens=300),
    )


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    folder: Path = tmp_path_factory.mktemp("service")
    template = str(HERMES_FILE)
    async with running_service(
        folder, engine="llama_cpp", engine_slots="2", chat_template_file=template
    ) as running:
        yield running


@pytest.fixture
async def stubs(service: Service) -> AsyncIterator[Stubs]:
    async with client(service.address) as made:
        yield made


async def predicted(stubs: Stubs, request: pb.GenerationRequest) -> tuple[str, pb.Completed]:
    """Return the text and the end."""
    log = Log()
    async for event in stubs.predictions.Predict(rpc.PredictRequest(model=MODEL, generation=request)):
        log.take(event)
        if event.WhichOneof("event") == "completed":
            return log.text, event.completed
    raise AssertionError("no end")


async def test_the_model_says_how_it_writes_calls(stubs: Stubs) -> None:
    model = await stubs.models.GetModel(mpb.GetModelRequest(name=MODEL))
    assert model.tool_format == "hermes" and {"chat.tools", "json_schema"} <= set(model.capabilities)


@pytest.mark.parametrize("forced", ["order", ""])
async def test_a_forced_call_is_the_whole_output(stubs: Stubs, forced: str) -> None:
    for seed in (1, 2):
        text, end = await predicted(stubs, ask(TOOL, OTHER, forced=forced, temperature=1, seed=seed))
        call = json.loads(text)
        assert list(call) == ["name", "arguments"] and end.finish_reason == pb.FINISH_REASON_STOP
        if call["name"] == "order":
            jsonschema.validate(call["arguments"], ORDER)
        else:
            assert call == {"name": "wait", "arguments": {}} and not forced


async def test_counting_counts_what_is_fed(stubs: Stubs) -> None:
    counts = set()
    for request in (ask(), ask(TOOL), ask(TOOL, OTHER), ask(TOOL, OTHER, forced="")):
        request.stopping.max_tokens = 1
        asked = mpb.CountTokensRequest(model=MODEL, chat=request.chat)
        counted = (await stubs.models.CountTokens(asked)).input_tokens
        assert counted == (await predicted(stubs, request))[1].usage.input_tokens
        counts.add(counted)
    assert len(counts) == 4


async def test_a_schema_that_cannot_be_kept_is_refused_by_name(stubs: Stubs) -> None:
    odd = pb.Tool(name="odd", parameters='{"type":"object","properties":{"a":{"not":{"type":"string"}}}}')
    request = rpc.CreatePredictionRequest(model=MODEL, generation=ask(TOOL, odd, forced=""))
    refused = await failure(stubs.predictions.CreatePrediction(request))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT and refused.bad is not None
    (violation,) = refused.bad.field_violations
    assert violation.field == "chat.tools" and "cannot be forced" in violation.description
    bad = mpb.CountTokensRequest(model=MODEL, chat=pb.ChatInput(messages=[ASKED], tools=[pb.Tool(name="")]))
    refused = await failure(stubs.models.CountTokens(bad))
    assert refused.bad is not None
    assert [violation.field for violation in refused.bad.field_violations] == ["chat.tools[0].name"]


async def test_an_unfinished_answer_goes_on_as_raw_text_does(stubs: Stubs) -> None:
    begun = pb.ChatMessage(role="assistant", content="Of course! Here is")
    request = ask()
    request.stopping.max_tokens = 24
    request.chat.messages.append(begun)
    request.chat.continue_final_message = True
    raw = pb.GenerationRequest(sampling=request.sampling, stopping=request.stopping)
    raw.prompt = f"<|im_start|>user\n{ASKED.content}<|im_end|>\n<|im_start|>assistant\n{begun.content}"
    assert (await predicted(stubs, request))[0] == (await predicted(stubs, raw))[0] != ""


async def test_a_forced_call_of_a_killed_engine_is_the_same_call(service: Service, stubs: Stubs) -> None:
    request = ask(TOOL, forced="order")
    whole, _ = await predicted(stubs, request)
    log = Log()
    with anyio.fail_after(300):
        prediction_id = await create(stubs, request)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, stubs, prediction_id, log)
            await disturb(
                service.kill_engines,
                times=1,
                progress=lambda: log.sequence,
                over=lambda: log.end is not None,
                step=6,
            )
    assert log.text == whole
    jsonschema.validate(json.loads(log.text)["arguments"], ORDER)


async def test_the_python_client_asks_for_the_same(service: Service, stubs: Stubs) -> None:
    tool = {"name": TOOL.name, "description": TOOL.description, "parameters": ORDER}
    async with AsyncClient(service.address) as own:
        prediction = await own.create(
            MODEL,
            chat=[{"role": ASKED.role, "content": ASKED.content}],
            tools=[tool],
            forced_tool="order",
            temperature=0,
            max_tokens=300,
        )
        async with own.stream(prediction.id) as stream:
            text = "".join([event.output.text async for event in stream])
    assert text == (await predicted(stubs, ask(TOOL, forced="order")))[0]
    jsonschema.validate(json.loads(text)["arguments"], ORDER)
