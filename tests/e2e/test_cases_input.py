"""Cases of public bug reports on parameters, bodies and sizes, each named after its number."""

from __future__ import annotations

import gzip
import json
from typing import Any

import anyio
import grpc
import httpx
import pytest

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, script

OK = script(pieces=["a ", "b "])


async def finished(pair: Pair, **given: Any) -> dict[str, Any]:
    """Create with `Prefer: wait`; it must be taken and end well."""
    answer = await pair.api.post(given, {"Prefer": "wait"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["status"] == "succeeded"
    return answer.json()


async def refused(pair: Pair, field: str, **given: Any) -> None:
    """Create something that must be refused, naming the field."""
    answer = await pair.api.post(given)
    assert answer.status_code == 422, answer.text
    assert [fault["field"] for fault in answer.json()["invalid_fields"]] == [f"input.{field}"]


async def create(pair: Pair, generation: pb.GenerationRequest) -> pb.Prediction:
    """Create by gRPC."""
    request = rpc.CreatePredictionRequest(model=MODEL, generation=generation)
    return await pair.stubs.predictions.CreatePrediction(request)


async def outcome(pair: Pair, generation: pb.GenerationRequest) -> pb.Prediction:
    """Create by gRPC and wait for the end."""
    get = rpc.GetPredictionRequest(id=(await create(pair, generation)).id, wait={"seconds": LIMIT_S})
    return await pair.stubs.predictions.GetPrediction(get)


async def code_of(pair: Pair, generation: pb.GenerationRequest) -> grpc.StatusCode:
    """Return the status of a create by gRPC that must be refused."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create(pair, generation)
    return raised.value.code()


async def test_b119_the_ends_of_each_range_are_taken(pair: Pair) -> None:
    good = [("top_p", v) for v in (1, 1.0, 0, 0.0001)] + [("top_k", v) for v in (0, -1, 1)] + [("min_p", 0)]
    for name, value in good:
        made = await finished(pair, prompt=OK, **{name: value})
        assert made["input"][name] == value
        sampling = pb.Sampling(**{name: value})
        ended = await outcome(pair, pb.GenerationRequest(prompt=OK, sampling=sampling))
        assert ended.status == pb.STATUS_SUCCEEDED
    for value in (-0.1, 1.1):
        await refused(pair, "top_p", prompt=OK, top_p=value)
        sampling = pb.Sampling(top_p=value)
        code = await code_of(pair, pb.GenerationRequest(prompt=OK, sampling=sampling))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_b122_without_max_tokens_it_goes_on_to_its_end_or_512(pair: Pair) -> None:
    short, text = numbered(40)
    made = await finished(pair, prompt=short)
    assert "".join(made["output"]) == text
    assert made["metrics"]["output_token_count"] == 41
    endless = script(pieces=["a "], repeat=600)
    assert (await finished(pair, prompt=endless))["metrics"]["output_token_count"] == 512
    ended = await outcome(pair, pb.GenerationRequest(prompt=endless))
    assert ended.usage.output_tokens == 512 and ended.finish_reason == pb.FINISH_REASON_LENGTH


async def test_b123_max_tokens_of_every_kind(pair: Pair) -> None:
    for name in ("max_tokens", "max_new_tokens"):
        assert "".join((await finished(pair, prompt=OK, **{name: None}))["output"]) == "a b "
        assert (await finished(pair, prompt=OK, **{name: 1}))["output"] == ["a "]
        assert "".join((await finished(pair, prompt=OK, **{name: 10**9}))["output"]) == "a b "
        for value in (0, -1, 1.5, "5"):
            await refused(pair, name, prompt=OK, **{name: value})
    one = await outcome(pair, pb.GenerationRequest(prompt=OK, stopping=pb.Stopping(max_tokens=1)))
    assert (list(one.output), one.finish_reason) == (["a "], pb.FINISH_REASON_LENGTH)
    much = await outcome(pair, pb.GenerationRequest(prompt=OK, stopping=pb.Stopping(max_tokens=10**9)))
    assert ("".join(much.output), much.finish_reason) == ("a b ", pb.FINISH_REASON_STOP)
    for value in (0, -1):
        stopping = pb.Stopping(max_tokens=value)
        code = await code_of(pair, pb.GenerationRequest(prompt=OK, stopping=stopping))
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_b126_a_seed_of_minus_one_is_random_and_others_below_zero_are_refused(pair: Pair) -> None:
    for value in (None, -1, 0, 2**63 - 1):
        await finished(pair, prompt=OK, seed=value)
        sampling = pb.Sampling(seed=value)
        assert (await outcome(pair, pb.GenerationRequest(prompt=OK, sampling=sampling))).output
    await refused(pair, "seed", prompt=OK, seed=-5)
    code = await code_of(pair, pb.GenerationRequest(prompt=OK, sampling=pb.Sampling(seed=-5)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_b132_an_empty_prompt_is_refused_while_others_run(pair: Pair) -> None:
    prompt, text = numbered(60, delay_ms=5)
    others: list[str] = []

    async def other() -> None:
        others.append((await pair.api.read(await pair.api.create(prompt))).text)

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(other)
            await refused(pair, "prompt", prompt="")
            await refused(pair, "prompt", prompt=[])
            await refused(pair, "prompt", prompt=[[]])
            await refused(pair, "messages", messages=[])
            await finished(pair, prompt=" ", max_tokens=5)
            for empty in (
                pb.GenerationRequest(prompt=""),
                pb.GenerationRequest(tokens=pb.TokenInput()),
                pb.GenerationRequest(chat=pb.ChatInput()),
            ):
                assert await code_of(pair, empty) is grpc.StatusCode.INVALID_ARGUMENT
            blank = pb.GenerationRequest(prompt=" ", stopping=pb.Stopping(max_tokens=5))
            assert (await outcome(pair, blank)).status == pb.STATUS_SUCCEEDED
    assert others == [text] * 3


@pytest.mark.parametrize("depth", [20_000, 100_000])
async def test_b136_deep_nesting_is_a_bad_request_anywhere(pair: Pair, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    pid = pair.edge.pid
    for body in (
        b"[" * depth,
        deep,
        b'{"input":' + deep + b"}",
        b'{"input":{"prompt":"x","json_schema":{"type":' + deep + b"}}}",
        b'{"input":{"prompt":"x","unknown":' + deep + b"}}",
        b'{"metadata":' + deep + b',"input":{"prompt":"x"}}',
    ):
        answer = await pair.api.post_raw(body)
        assert answer.status_code == 400 and "32 levels" in answer.json()["detail"]
    await finished(pair, prompt=OK)
    assert pair.edge.pid == pid


B138: list[tuple[bytes, dict[str, str], int]] = [
    (b"{", {}, 400),
    (b'{"a":1}x', {}, 400),
    (b"{'a':1}", {}, 400),
    (b'{"a":NaN}', {}, 400),
    (b'{"a":Infinity}', {}, 400),
    (b'{"a":1,"a":2}', {}, 422),  # the last one wins; `input` is missing
    (b"\xef\xbb\xbf{}", {}, 422),  # a byte order mark is taken
    ("{}".encode("utf-16"), {}, 400),
    ('{"input":{"prompt":"é"}}'.encode("latin-1"), {}, 400),
    (gzip.compress(b"{}"), {}, 400),
    (gzip.compress(b"{}"), {"content-encoding": "gzip"}, 415),
    (b" " * 2_000_000, {}, 413),
]


async def test_b138_malformed_json_is_one_clear_problem(pair: Pair) -> None:
    for body, headers, status in B138:
        answer = await pair.api.post_raw(body, headers)
        assert (answer.status_code, answer.json()["status"]) == (status, status), body[:40]
        assert answer.headers["content-type"] == "application/problem+json"
    position = (await pair.api.post_raw(b'{"input": {"prompt": "x",}}')).json()["detail"]
    assert "line 1, column" in position
    doubled = b'{"input":{"prompt":"not this","prompt":' + json.dumps(OK).encode() + b"}}"
    answer = await pair.api.post_raw(doubled, {"Prefer": "wait"})
    assert "".join(answer.json()["output"]) == "a b "


async def test_b140_another_json_type_than_an_object_is_refused(pair: Pair) -> None:
    for body in (b"[]", b"null", b'"x"', b"5", b"true"):
        answer = await pair.api.post_raw(body)
        assert answer.status_code == 422 and answer.json()["invalid_fields"][0]["field"] == "(root)"
    for inner in ("null", "[]", '"x"'):
        answer = await pair.api.post_raw(b'{"input":' + inner.encode() + b"}")
        assert answer.status_code == 422 and answer.json()["invalid_fields"][0]["field"] == "input"
    await refused(pair, "messages", messages={"role": "user", "content": "x"})
    await refused(pair, "messages.0.content", messages=[{"role": "user", "content": 5}])


async def test_b142_invalid_utf_8_is_a_bad_request_in_plain_ascii(pair: Pair) -> None:
    answer = await pair.api.post_raw(b'{"input":{"prompt":"\xff\xfe"}}')
    assert answer.status_code == 400
    assert answer.content.isascii() and "byte 20" in answer.json()["detail"]
    headers = [(b"prefer", b"wa\xffit"), (b"cancel-after", b"\xff\xfe"), (b"x-request-id", b"\xe9")]
    url = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
    answer = await pair.http.post(url, json={"input": {"prompt": OK}}, headers=headers)
    assert answer.status_code == 422 and answer.content.isascii()
    made = await pair.http.post(url, json={"input": {"prompt": OK}}, headers=[headers[0], headers[2]])
    assert made.status_code == 201
    read = await pair.http.get(made.json()["urls"]["get"], headers=[(b"accept", b"\xff")])
    assert read.status_code == 200


async def test_b172_what_is_too_large_is_told_the_limit(pair: Pair) -> None:
    answer = await pair.api.post({"prompt": "x" * 5_000_000})
    assert answer.status_code == 413 and "1048576 bytes" in answer.json()["detail"]
    try:
        answer = await pair.api.post({"prompt": "x" * 20_000_000})
    except httpx.TransportError:
        pass  # answered and closed while the body was still being sent
    else:
        assert answer.status_code == 413
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create(pair, pb.GenerationRequest(prompt="x" * 5_000_000))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "4194304 bytes" in (raised.value.details() or "")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await create(pair, pb.GenerationRequest(prompt="x" * 20_000_000))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # gRPC's own, before any code of ours
    assert str(8 * 1024 * 1024) in (raised.value.details() or "")
    await finished(pair, prompt=OK)


async def test_b173_a_huge_error_text_is_cut_everywhere(pair: Pair) -> None:
    message = "out\nof 🙂 luck\0 "
    failing = script(pieces=["a"], fail_after=1, fail_message=message, fail_repeat=7000)
    made = await pair.api.create(failing)
    reading = await pair.api.read(made)
    stored = await pair.api.get(made)
    told = json.loads(reading.events[-2].data)["detail"]
    assert [event.event for event in reading.events] == ["output", "error", "done"]
    assert stored["status"] == "failed" and stored["error"] == told
    ended = await outcome(pair, pb.GenerationRequest(prompt=failing))
    assert ended.error == told
    assert len(told.encode()) <= 1024 and told.startswith("out") and "\0" not in told and "🙂" in told
    raising = await outcome(pair, pb.GenerationRequest(prompt=script(pieces=["a"], raise_after=1)))
    assert raising.status == pb.STATUS_FAILED and "Traceback" not in raising.error


async def test_b180_no_header_can_spoil_the_call_behind_it(pair: Pair) -> None:
    headers = [
        ("X-Request-ID", "Abc"), ("traceparent", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
        ("Authorization", "Bearer x"), ("grpc-foo", "x"), ("grpc-timeout", "1n"), ("X_Under_Score", "y"),
        ("x-blank", ""), ("x-thing-bin", "not base64"), ("te", "trailers"),
    ]  # fmt: skip
    url = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
    answer = await pair.http.post(url, json={"input": {"prompt": OK}}, headers=[*headers, ("Prefer", "wait")])
    assert answer.status_code == 201 and answer.json()["status"] == "succeeded"
    for broken in ("", "x", "00-zz-yy-01", "a\tb", "a" * 5000):
        answer = await pair.http.post(url, json={"input": {"prompt": OK}}, headers={"traceparent": broken})
        assert answer.status_code == 201


@pytest.mark.parametrize("prefer", [None, "respond-async"])
@pytest.mark.parametrize("accept", [None, "text/event-stream", "application/json", "garbage"])
async def test_b060_a_create_answers_with_the_same_object_whatever_it_prefers(
    pair: Pair, prefer: str | None, accept: str | None
) -> None:
    given = {"Prefer": prefer, "Accept": accept}
    headers = {name: value for name, value in given.items() if value is not None}
    answer = await pair.api.post({"prompt": OK}, headers)
    assert answer.status_code == 201 and answer.headers["content-type"] == "application/json"
    made = answer.json()
    assert (made["status"], made["output"]) == ("starting", None)
    assert made["urls"].keys() == {"get", "cancel", "web", "stream"}
