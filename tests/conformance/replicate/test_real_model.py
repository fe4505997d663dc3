"""The official clients and plain gRPC on the real model: what a user of the demo sees.

Few tokens each: the point is the whole path, not the text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import pytest

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.conformance.replicate.js import npm_client
from tests.conformance.replicate.python.wire import Wire, in_thread, replicate_client
from tests.contract.engines.demo_model import demo_model_path
from tests.support.pair import MODEL, Pair, running_pair

pytestmark = pytest.mark.engine
GIVEN = {"prompt": "Count from one to ten.", "max_tokens": 8, "temperature": 0}
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
REAL_LIMIT_S = 100


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    model_path = await anyio.to_thread.run_sync(demo_model_path)
    service = {
        "engine": "llama_cpp",
        "model_path": str(model_path),
        "engine_slots": "2",
        "engine_context_tokens": "512",
        "engine_threads": "1",
    }
    async with running_pair(tmp_path_factory.mktemp("real"), service) as running:
        running.http.timeout = REAL_LIMIT_S
        yield running


async def outcome(pair: Pair, generation: pb.GenerationRequest) -> pb.Prediction:
    """Create by gRPC and wait for the end."""
    request = rpc.CreatePredictionRequest(model=MODEL, generation=generation)
    made = await pair.stubs.predictions.CreatePrediction(request)
    while not made.HasField("complete_time"):
        get = rpc.GetPredictionRequest(id=made.id, wait={"seconds": 30})
        made = await pair.stubs.predictions.GetPrediction(get)
    return made


async def test_12_python_run_and_stream(pair: Pair) -> None:
    with replicate_client(pair.edge.url, Wire(), silence_s=30) as py1:
        output = await in_thread(py1.run, MODEL, input=GIVEN, limit_s=REAL_LIMIT_S)
        assert output and all(isinstance(item, str) and item for item in output)
        events = await in_thread(lambda: list(py1.stream(MODEL, input=GIVEN)), limit_s=REAL_LIMIT_S)
        assert "".join(str(event) for event in events).strip()
        assert (events[-1].event.value, events[-1].data) == ("done", "{}")


@pytest.mark.node
async def test_18_npm_run_and_stream(pair: Pair) -> None:
    await npm_client.install()
    report = await npm_client.run_case("run", pair.edge.url, limit_s=REAL_LIMIT_S, model=MODEL, input=GIVEN)
    assert report.error is None and "".join(report.result).strip()
    report = await npm_client.run_case(
        "stream", pair.edge.url, limit_s=REAL_LIMIT_S, model=MODEL, input=GIVEN
    )
    assert "".join(event["data"] for event in report.result if event["event"] == "output").strip()
    assert report.result[-1]["event"] == "done"


async def test_plain_grpc_predict(pair: Pair) -> None:
    turn = pb.ChatMessage(role="user", content=GIVEN["prompt"])
    generation = pb.GenerationRequest(
        chat=pb.ChatInput(messages=[turn]),
        sampling=pb.Sampling(temperature=0),
        stopping=pb.Stopping(max_tokens=8),
    )
    text, kinds, last = "", [], None
    with anyio.fail_after(REAL_LIMIT_S):
        async for event in pair.stubs.predictions.Predict(
            rpc.PredictRequest(model=MODEL, generation=generation)
        ):
            kinds.append(event.WhichOneof("event"))
            text += event.output.text
            last = event.completed
    assert (kinds[:2], kinds[-1]) == (["accepted", "started"], "completed")
    assert text.strip() and last is not None
    assert last.status == pb.STATUS_SUCCEEDED and 1 <= last.usage.output_tokens <= 8


async def test_b104_a_leading_blank_of_the_continuation_is_kept(pair: Pair) -> None:
    generation = pb.GenerationRequest(
        prompt="Once upon a", sampling=pb.Sampling(temperature=0), stopping=pb.Stopping(max_tokens=3)
    )
    with anyio.fail_after(REAL_LIMIT_S):
        assert "".join((await outcome(pair, generation)).output).startswith(" time")


async def test_b116_a_chat_begins_with_one_beginning_of_sequence_token(pair: Pair) -> None:
    async def count(**fields: object) -> int:
        request = mpb.CountTokensRequest(model=MODEL, **fields)  # type: ignore[arg-type]
        return (await pair.stubs.models.CountTokens(request)).input_tokens

    def chat(text: str) -> pb.ChatInput:
        return pb.ChatInput(messages=[pb.ChatMessage(role="user", content=text)])

    rendered = (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    # In a raw prompt special tokens count as such, and the rendered chat is one with just its own.
    assert await count(chat=chat("Hello")) == await count(prompt=rendered)
    assert await count(prompt="<|im_start|>Hello") == await count(prompt="Hello") + 1
    # In a message they are plain text.
    assert await count(chat=chat("<|im_start|>Hello")) > await count(chat=chat("Hello")) + 1
    generation = pb.GenerationRequest(chat=chat("Hello"), stopping=pb.Stopping(max_tokens=1))
    with anyio.fail_after(REAL_LIMIT_S):
        ended = await outcome(pair, generation)
    assert ended.usage.input_tokens == await count(chat=chat("Hello"))


async def test_b119_b123_b126_the_bounds_are_those_of_the_scripted_engine(pair: Pair) -> None:
    good: list[dict[str, object]] = [
        {"top_p": 1}, {"top_p": 0}, {"top_p": 0.0001}, {"top_k": -1}, {"top_k": 1}, {"min_p": 0},
        {"seed": -1}, {"seed": 2**63 - 1}, {"temperature": 2},
    ]  # fmt: skip
    for fields in good:
        answer = await pair.api.post({"prompt": "x", "max_tokens": 1, **fields}, {"Prefer": "wait"})
        assert (answer.status_code, answer.json().get("status")) == (201, "succeeded"), fields
        assert answer.json()["metrics"]["output_token_count"] == 1
    for fields in ({"top_p": 1.1}, {"seed": -5}, {"max_tokens": 0}, {"prompt": ""}, {"prompt": "x " * 600}):
        answer = await pair.api.post({"prompt": "x", **fields})
        assert answer.status_code == 422
        assert [f["field"] for f in answer.json()["invalid_fields"]] == [f"input.{name}" for name in fields]
