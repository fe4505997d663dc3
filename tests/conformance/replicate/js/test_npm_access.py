"""Replicate's npm client against an edge with tokens, limits and lost answers. Numbers: the contract's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from edge.auth.grants import Limits
from protos.tailrace.v1.prediction_service_pb2 import ListPredictionsRequest
from tests.conformance.replicate.js.npm_client import run_case
from tests.support.cutting_proxy import cutting_proxy
from tests.support.pair import MODEL, Pair, numbered, running_pair, script
from tests.support.tokens import TokenFile

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pair, TokenFile]]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    tokens.make("nobody-asks")
    async with running_pair(folder, edge={"tokens_file": str(tokens.path)}) as pair:
        yield pair, tokens


async def count(pair: Pair, owner: str = "") -> int:
    request = ListPredictionsRequest(owner=owner, page_size=1000)
    return len((await pair.stubs.predictions.ListPredictions(request)).predictions)


async def test_19_stream_works_where_all_else_wants_a_token(guarded: tuple[Pair, TokenFile]) -> None:
    pair, tokens = guarded
    prompt, text = numbered(10)
    report = await run_case("stream", pair.edge.url, model=MODEL, prompt=prompt, auth=tokens.make("js"))
    assert "".join(event["data"] for event in report.result if event["event"] == "output") == text
    create, stream = report.calls
    assert (create["authorized"], stream["authorized"], stream["status"]) == (True, False, 200)
    refused = await run_case("stream", pair.edge.url, model=MODEL, prompt=prompt, auth="r8_wrong")
    assert refused.error is not None and refused.error["status"] == 401


async def test_42_a_throttled_create_is_six_requests_and_no_prediction(
    guarded: tuple[Pair, TokenFile],
) -> None:
    pair, tokens = guarded
    token = tokens.make("slow", limits=Limits(creates_per_minute=1))
    first = await run_case("create", pair.edge.url, model=MODEL, prompt=script(), auth=token)
    assert first.error is None and await count(pair, "slow") == 1
    report = await run_case("create", pair.edge.url, model=MODEL, prompt=script(), auth=token)
    assert report.error is not None
    assert (report.error["name"], report.error["status"]) == ("ApiError", 429)
    assert [call["status"] for call in report.calls] == [429] * 6
    assert "Request was throttled." in report.error["message"]
    assert await count(pair, "slow") == 1


async def test_43_an_answer_lost_again_and_again_makes_one_prediction(pair: Pair) -> None:
    before = await count(pair)
    async with cutting_proxy(pair.edge.port, cuts=5) as proxy:
        report = await run_case("create", proxy.url, model=MODEL, prompt=script(pieces=["a"]), key="js-43")
    assert report.error is None and [call["status"] for call in report.calls][:5] == [0] * 5
    assert report.calls[5]["status"] in (200, 201) and proxy.requests == 6
    assert await count(pair) == before + 1


async def test_43_without_a_key_each_attempt_may_make_one(pair: Pair) -> None:
    before = await count(pair)
    async with cutting_proxy(pair.edge.port, cuts=2) as proxy:
        report = await run_case("create", proxy.url, model=MODEL, prompt=script(pieces=["a"]))
    assert report.error is None and len(report.calls) == 3
    assert before + 1 <= await count(pair) <= before + 3
