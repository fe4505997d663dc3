"""Who owns what was asked for through the OpenAI and Anthropic routes, on the real service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from edge.auth.grants import Scope
from protos.tailrace.v1.prediction_service_pb2 import ListPredictionsRequest
from tests.support.dialects import ALL, MESSAGES, WITH_WHOLE, Dialect, name_of, open_stream, read_stream
from tests.support.pair import MODEL, Pair, running_pair, script
from tests.support.tokens import TokenFile, bearer


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pair, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    by_owner = {name: tokens.make(name) for name in ("ann", "bob")}
    by_owner["root"] = tokens.make("root", Scope.ADMIN)
    edge = {"tokens_file": str(tokens.path), "hold_after_done": "100ms"}
    async with running_pair(folder, edge=edge) as pair:
        yield pair, by_owner


async def owned(pair: Pair, owner: str) -> set[str]:
    """Return the ids of an owner's predictions."""
    found = await pair.stubs.predictions.ListPredictions(ListPredictionsRequest(owner=owner))
    return {prediction.id for prediction in found.predictions}


@pytest.mark.parametrize("owner", ["ann", "root"])
@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_a_stream_is_its_askers(
    guarded: tuple[Pair, dict[str, str]], dialect: Dialect, owner: str
) -> None:
    pair, tokens = guarded
    reading = await read_stream(
        pair.http, pair.edge.url, dialect, script(pieces=["a", "b"]), bearer(tokens[owner])
    )
    assert reading.status == 200 and dialect.text(reading) == "ab"
    made = reading.headers["x-request-id"]
    assert made in await owned(pair, owner) and made not in await owned(pair, "bob")
    url = f"{pair.edge.url}/v1/predictions/{made}"
    assert (await pair.http.get(url, headers=bearer(tokens[owner]))).status_code == 200
    assert (await pair.http.get(url, headers=bearer(tokens["bob"]))).status_code == 404


@pytest.mark.parametrize("dialect", WITH_WHOLE, ids=name_of)
async def test_a_whole_answer_is_its_askers(guarded: tuple[Pair, dict[str, str]], dialect: Dialect) -> None:
    pair, tokens = guarded
    headers = {"x-api-key": tokens["ann"]} if dialect is MESSAGES else bearer(tokens["ann"])
    body = dialect.body(script(pieces=["a", "b"]))
    answer = await pair.http.post(pair.edge.url + dialect.path, json=body, headers=headers)
    assert answer.status_code == 200 and dialect.whole(answer.json()) == "ab"
    assert answer.headers["x-request-id"] in await owned(pair, "ann")


@pytest.mark.parametrize("dialect", ALL, ids=name_of)
async def test_only_its_owner_cancels_a_stream(
    guarded: tuple[Pair, dict[str, str]], dialect: Dialect
) -> None:
    pair, tokens = guarded
    prompt = script(pieces=["a "], repeat=100_000, delay_ms=10)
    async with open_stream(pair.http, pair.edge.url, dialect, prompt, bearer(tokens["ann"])) as reading:
        while not dialect.text(reading):
            await anext(reading)
        url = f"{pair.edge.url}/v1/predictions/{reading.headers['x-request-id']}/cancel"
        assert (await pair.http.post(url, headers=bearer(tokens["bob"]))).status_code == 404
        assert (await pair.http.post(url, headers=bearer(tokens["ann"]))).status_code == 200
        await reading.to_end()
    assert [event.event for event in reading.events].count("error") == 1


async def test_the_list_of_models_serves_the_clients_of_three_apis(
    guarded: tuple[Pair, dict[str, str]],
) -> None:
    pair, tokens = guarded
    url = f"{pair.edge.url}/v1/models"
    for headers in (bearer(tokens["ann"]), {"x-api-key": tokens["ann"], "anthropic-version": "2023-06-01"}):
        body: dict[str, Any] = (await pair.http.get(url, headers=headers)).json()
        assert (body["object"], body["has_more"], body["next"], body["previous"]) == (
            "list",
            False,
            None,
            None,
        )
        assert body["data"] == body["results"]
        (entry,) = body["data"]
        assert (entry["id"], f"{entry['owner']}/{entry['name']}") == (MODEL, MODEL)
        assert (await pair.http.get(f"{url}/{MODEL}", headers=headers)).json() == entry
        assert entry["latest_version"]["openapi_schema"]["openapi"] == "3.1.0"
