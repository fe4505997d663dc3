"""What a page of another origin may do with an edge, by the rules of a real browser (docs/security.md)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from edge.protocol.sse import SseParser
from tests.support.browser import Browser, Page
from tests.support.pair import MODEL, Pair, numbered, running_pair
from tests.support.site import serving

pytestmark = pytest.mark.browser

# Resolves with the events' texts at `done`, or with the name of what went wrong.
EVENT_SOURCE = """new Promise((resolve) => {
  const texts = [];
  const source = new EventSource(%s, %s);
  const end = (value) => { source.close(); resolve(value); };
  source.addEventListener("output", (event) => texts.push(event.data));
  source.addEventListener("done", () => end(texts));
  source.addEventListener("error", () => end("refused"));
})"""
FETCH = """fetch(%s, %s).then(
  async (answer) => ({
    status: answer.status, headers: Object.fromEntries(answer.headers), text: await answer.text(),
  }),
  () => "refused",
)"""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text('<!doctype html><title>x</title><link rel="icon" href="data:,">')
    with serving(folder) as found:
        yield found


@pytest.fixture(scope="module")
async def letting(origin: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Processes whose edge lets the page's origin in and does not hold a stream after its end."""
    edge = {"cors_origins": origin, "hold_after_done": "0s"}
    async with running_pair(tmp_path_factory.mktemp("letting"), edge=edge) as pair:
        yield pair


@pytest.fixture
async def page(browser: Browser, origin: str) -> AsyncIterator[Page]:
    async with browser.page() as opened:
        await opened.goto(origin)
        yield opened


async def fetch(page: Page, url: str, **options: object) -> Any:
    """Fetch from the page; `refused` when the browser does not let it."""
    return await page.evaluate(FETCH % (json.dumps(url), json.dumps(options)))


async def test_any_page_may_read_a_stream_by_its_url(page: Page, pair: Pair) -> None:
    prompt, text = numbered(5)
    url = json.dumps((await pair.api.create(prompt))["urls"]["stream"])
    assert "".join(await page.evaluate(EVENT_SOURCE % (url, "{}"))) == text
    assert page.complaints == []


async def test_no_page_may_read_one_with_credentials(page: Page, pair: Pair) -> None:
    prediction = await pair.api.create(numbered(5)[0])
    url = json.dumps(prediction["urls"]["stream"])
    assert await page.evaluate(EVENT_SOURCE % (url, "{withCredentials: true}")) == "refused"


async def test_a_fetch_may_resume_a_stream(page: Page, letting: Pair) -> None:
    prompt, text = numbered(5, delay_ms=30)
    prediction = await letting.api.create(prompt)
    before = await letting.api.read(prediction)
    first, *rest = before.events
    answer = await fetch(page, prediction["urls"]["stream"], headers={"Last-Event-ID": first.id})
    after = SseParser().feed(answer["text"].encode())
    assert "".join(event.data for event in after if event.event == "output") == text.removeprefix(first.data)
    assert after[-1] == rest[-1]
    assert page.complaints == []


async def test_a_page_that_is_not_let_in_reads_and_makes_nothing(page: Page, pair: Pair) -> None:
    before = (await pair.http.get(f"{pair.edge.url}/v1/predictions")).json()["results"]
    create = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
    body = json.dumps({"input": {"prompt": numbered(3)[0]}})
    headers = {"Content-Type": "application/json"}
    assert await fetch(page, create, method="POST", body=body, headers=headers) == "refused"
    assert await fetch(page, f"{pair.edge.url}/v1/models") == "refused"
    after = (await pair.http.get(f"{pair.edge.url}/v1/predictions")).json()["results"]
    assert len(after) == len(before)


async def test_a_page_that_is_let_in_sends_and_reads_what_clients_need(page: Page, letting: Pair) -> None:
    headers = {
        "Authorization": "Bearer unused",
        "Content-Type": "application/json",
        "Cancel-After": "60s",
        "Idempotency-Key": "a-page-s-key",
        "Prefer": "wait=30",
        "X-Stainless-Lang": "js",
    }
    create = f"{letting.edge.url}/v1/models/{MODEL}/predictions"
    body = json.dumps({"input": {"prompt": numbered(3)[0], "max_tokens": 10}})
    answers = [await fetch(page, create, method="POST", body=body, headers=headers) for _ in range(2)]
    assert [answer["status"] for answer in answers] == [201, 200]
    made = [json.loads(answer["text"]) for answer in answers]
    assert made[0]["id"] == made[1]["id"]
    assert made[0]["status"] == "succeeded"
    assert answers[0]["headers"]["preference-applied"].startswith("wait")
    assert answers[1]["headers"]["idempotent-replayed"] == "true"
    assert answers[0]["headers"]["location"] == made[0]["urls"]["get"]
    assert page.complaints == []


async def test_a_page_reads_what_it_is_refused_for(page: Page, letting: Pair) -> None:
    bad = {"method": "POST", "body": "{", "headers": {"Content-Type": "application/json"}}
    for path, status in (
        ("chat/completions", 400),
        ("messages", 400),
        (f"models/{MODEL}/predictions", 400),
    ):
        answer = await fetch(page, f"{letting.edge.url}/v1/{path}", **bad)
        assert (answer["status"], "x-request-id" in answer["headers"]) == (status, True), path
        assert json.loads(answer["text"])
    assert (await fetch(page, f"{letting.edge.url}/v1/nowhere"))["status"] == 404
