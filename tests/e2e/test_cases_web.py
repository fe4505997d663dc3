"""Web pages of other origins, as their browsers ask on their behalf. Cases B092 to B097.

The tests say what a browser's requests say and hold the answers to what it demands of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.pair import MODEL, Pair, numbered, running_pair, script
from tests.support.tokens import TokenFile, bearer

APP = "https://app.example"
SENT = (
    "last-event-id, authorization, prefer, cancel-after, idempotency-key, x-api-key, anthropic-version, "
    "content-type, x-stainless-lang, x-stainless-retry-count, x-stainless-timeout"
)


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pair, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("web")
    token = (tokens := TokenFile(folder)).make("ann")
    edge = {"tokens_file": str(tokens.path), "cors_origins": APP, "hold_after_done": "100ms"}
    async with running_pair(folder, edge=edge) as pair:
        yield pair, bearer(token)


def readable(answer: httpx.Response, origin: str) -> bool:
    """Return whether a browser lets a page of `origin` read the answer to a request without credentials."""
    allowed = answer.headers.get_list("access-control-allow-origin")
    return allowed in (["*"], [origin])


async def preflight(pair: Pair, url: str, method: str, origin: str = APP) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": SENT,
    }
    return await pair.http.options(url, headers=headers)


async def test_b092_an_event_source_needs_no_header(guarded: tuple[Pair, dict[str, str]]) -> None:
    pair, auth = guarded
    prompt, text = numbered(5)
    made = await pair.api.create(prompt, auth)
    event_source = {
        "accept": "text/event-stream",
        "cache-control": "no-store",
        "origin": "https://else.example",
    }
    reading = await pair.api.read(made, event_source)
    assert (reading.text, reading.done) == (text, {})
    assert reading.headers["access-control-allow-origin"] == "*"
    answer = await pair.http.post(made["urls"]["stream"], headers=event_source)
    assert answer.status_code == 405  # it reads, and does nothing else
    other = await pair.api.create(prompt, auth)
    mixed = made["urls"]["stream"][:-26] + other["urls"]["stream"][-26:]
    assert (await pair.http.get(mixed)).status_code == 404


async def test_b093_a_stream_leaks_nowhere_and_its_preflight_allows_all(
    guarded: tuple[Pair, dict[str, str]],
) -> None:
    pair, auth = guarded
    made = await pair.api.create(script(pieces=["a"]), auth)
    url = made["urls"]["stream"]
    reading = await pair.api.read(made)
    assert reading.headers["referrer-policy"] == "no-referrer"
    assert (
        reading.headers["cache-control"].startswith("no-store")
        or "no-cache" in reading.headers["cache-control"]
    )
    broken = await pair.http.get(url + "x")
    token = url.rsplit("/", 1)[1]
    assert broken.status_code == 404 and token not in broken.text + pair.edge.log + pair.service.log
    api = pair.edge.url + "/v1/predictions"
    for target, method in ((url, "GET"), (api, "POST"), (made["urls"]["get"], "GET")):
        answer = await preflight(pair, target, method)
        assert answer.status_code == 204 and readable(answer, APP)
        assert method in answer.headers["access-control-allow-methods"].split(", ")
        assert set(SENT.split(", ")) <= set(answer.headers["access-control-allow-headers"].split(", "))
    refused = await preflight(pair, api, "POST", "https://evil.example")
    assert not readable(refused, "https://evil.example")


async def test_b094_a_fetch_from_another_origin_may_resume(guarded: tuple[Pair, dict[str, str]]) -> None:
    pair, auth = guarded
    made = await pair.api.create(numbered(6)[0], auth)
    url, origin = made["urls"]["stream"], {"origin": "https://else.example"}
    answer = await preflight(pair, url, "GET", "https://else.example")
    assert answer.status_code in (200, 204) and readable(answer, "https://else.example")
    assert "last-event-id" in answer.headers["access-control-allow-headers"]
    whole = await pair.api.read(made)
    rest = await pair.api.read(made, origin | {"last-event-id": whole.ids[0]})
    assert rest.events == whole.events[1:]
    exposed = rest.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after"} <= set(exposed)
    late = await pair.http.get(url, headers=origin | {"last-event-id": whole.ids[-1]})
    assert late.status_code == 204 and readable(late, "https://else.example")


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "application/json", "*/*", "", "text/html", "garbage", ";;,"]
)
async def test_b096_accept_is_no_gate(guarded: tuple[Pair, dict[str, str]], accept: str) -> None:
    pair, auth = guarded
    asked = {"accept": accept}
    made = await pair.api.create(script(pieces=["a"]), auth | asked)
    reading = await pair.api.read(made, asked)
    assert reading.done == {} and reading.headers["content-type"].startswith("text/event-stream")
    bad = [
        await pair.api.post({}, auth | asked),
        await pair.api.post({"prompt": "x"}, asked),
        await pair.http.get(made["urls"]["stream"] + "x", headers=asked),
    ]
    assert [answer.status_code for answer in bad] == [422, 401, 404]
    assert {answer.headers["content-type"] for answer in bad} == {"application/problem+json"}


@pytest.mark.parametrize(
    "accept", ["application/json", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"]
)
async def test_b097_the_api_answers_json_whoever_asks(pair: Pair, accept: str) -> None:
    path = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
    body = {"input": {"prompt": script(pieces=["a"])}}
    made = await pair.http.post(path, json=body, headers={"accept": accept})
    got = await pair.http.get(made.json()["urls"]["get"], headers={"accept": accept})
    assert [made.status_code, got.status_code] == [201, 200]
    assert {made.headers["content-type"], got.headers["content-type"]} == {"application/json"}
