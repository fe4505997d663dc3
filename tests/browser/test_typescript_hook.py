"""The TypeScript client's React hook in a real browser, on a page of another origin than the edge's."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.browser import Browser, Page
from tests.support.npm import TYPESCRIPT, install, run
from tests.support.pair import MODEL, Pair, numbered, running_pair, script, until_idle
from tests.support.prefix_proxy import prefix_proxy
from tests.support.site import serving
from tests.support.tokens import TokenFile

pytestmark = [pytest.mark.browser, pytest.mark.node]

APIS = ("replicate", "openai", "openai-resumable", "anthropic", "anthropic-resumable")
DETACHED = ("replicate", "openai-resumable", "anthropic-resumable")
TEXT = "document.querySelector('#text').textContent"
PAGE = """<!doctype html><meta charset="utf-8"><title>Hook</title><link rel="icon" href="data:,">
<div id="root"></div><script src="page.js"></script>"""


@dataclass(frozen=True)
class Site:
    """A page with the hook, served from an origin of its own."""

    origin: str

    def url(self, pair: Pair, api: str = "replicate", **more: str) -> str:
        """Return the page's URL for an edge and one of its APIs."""
        return f"{self.origin}/?{urlencode({'base': pair.edge.url, 'model': MODEL, 'api': api} | more)}"


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    await install(TYPESCRIPT)
    folder = tmp_path_factory.mktemp("site")
    await run(
        "esbuild",
        "test/browser_page.ts",
        "--bundle",
        '--define:process.env.NODE_ENV="development"',  # where strict mode mounts everything twice
        "--log-level=warning",
        f"--outfile={folder / 'page.js'}",
    )
    (folder / "index.html").write_text(PAGE)
    with serving(folder) as origin:
        yield Site(origin)


@pytest.fixture(scope="module")
async def cross(site: Site, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    """Processes whose edge lets the page's origin in."""
    async with running_pair(tmp_path_factory.mktemp("cross"), edge={"cors_origins": site.origin}) as pair:
        yield pair


@asynccontextmanager
async def started(
    browser: Browser, site: Site, pair: Pair, prompt: str, api: str = "replicate", **more: str
) -> AsyncGenerator[Page, None]:
    """Open the page and start a run."""
    async with browser.page() as page:
        await page.goto(site.url(pair, api, **more))
        await page.wait_for("document.querySelector('#prompt') !== null")
        await page.fill("#prompt", prompt)
        await page.click("#start")
        yield page


def status(name: str) -> str:
    """Return the condition that the hook says this status."""
    return f"document.querySelector('#facts').dataset.status === '{name}'"


def posts(page: Page, ending: str) -> int:
    """Return how many POST requests had this ending."""
    return sum(method == "POST" and url.endswith(ending) for method, url in page.requests)


def creates(page: Page) -> int:
    """Return how often something was created, by whichever API."""
    return sum(posts(page, ending) for ending in ("/predictions", "/chat/completions", "/messages"))


async def listed(pair: Pair) -> list[dict[str, Any]]:
    """Return the predictions, the newest first."""
    results: list[dict[str, Any]] = (await pair.http.get(f"{pair.edge.url}/v1/predictions")).json()["results"]
    return results


async def latest(pair: Pair) -> dict[str, Any]:
    """Return the newest prediction; one is made if there is none."""
    if not (results := await listed(pair)):
        await pair.api.create(script())
        results = await listed(pair)
    return results[0]


@pytest.mark.parametrize("api", APIS)
async def test_a_run_streams_to_its_end(browser: Browser, site: Site, cross: Pair, api: str) -> None:
    pieces = ["def f():", "\n", "    return ", "'漢😀", " \u2028 ", "안녕'", "\n\n"]
    async with started(browser, site, cross, script(pieces=pieces, repeat=20, delay_ms=2), api) as page:
        await page.wait_for(status("finished"))
        assert await page.evaluate(TEXT) == "".join(pieces) * 20
        assert (creates(page), posts(page, "/cancel")) == (1, 0)
        end = json.loads(await page.evaluate("document.querySelector('#facts').dataset.end"))
        expected = {"replicate": "succeeded", "openai": "stop", "anthropic": "end_turn"}
        assert end["reason"] == expected[api.partition("-")[0]]
        assert api == "replicate" or end["usage"]["outputTokens"] == len(pieces) * 20 + 1
        assert page.complaints == []


@pytest.mark.parametrize("api", APIS)
async def test_b055_stop_cancels_once_and_frees_the_slot(
    browser: Browser, site: Site, cross: Pair, api: str
) -> None:
    async with started(browser, site, cross, numbered(5000, delay_ms=20)[0], api) as page:
        await page.wait_for(f"{TEXT}.length > 20")
        await page.evaluate("for (let n = 0; n < 4; n += 1) document.querySelector('#stop').click()")
        await page.wait_for(status("cancelled"))
        shown = await page.evaluate(TEXT)
        await until_idle(cross.stubs)
        assert (await latest(cross))["status"] == "canceled"
        assert (creates(page), posts(page, "/cancel")) == (1, 1 if api in DETACHED else 0)
        assert await page.evaluate(TEXT) == shown
        assert page.complaints == []


async def test_b055_stop_before_the_prediction_is_known_cancels_it_too(
    browser: Browser, site: Site, cross: Pair
) -> None:
    async with browser.page() as page:
        await page.goto(site.url(cross))
        await page.wait_for("document.querySelector('#prompt') !== null")
        await page.fill("#prompt", numbered(5000, delay_ms=20)[0])
        clicks = "for (const id of ['start', 'stop', 'stop']) document.querySelector(`#${id}`).click()"
        await page.evaluate(clicks)
        await page.wait_for(status("cancelled"))
        while posts(page, "/cancel") == 0:
            await page.evaluate("new Promise(requestAnimationFrame)")
        await until_idle(cross.stubs)
        assert (await latest(cross))["status"] == "canceled"
        assert (creates(page), posts(page, "/cancel")) == (1, 1)


@pytest.mark.parametrize("how", ["taken off", "reloaded", "closed"])
async def test_b055_leaving_without_stop_cancels_nothing(
    browser: Browser, site: Site, cross: Pair, how: str
) -> None:
    prompt, text = numbered(200, delay_ms=5)
    async with started(browser, site, cross, prompt) as page:
        await page.wait_for(f"{TEXT}.length > 20")
        match how:
            case "taken off":
                await page.click("#take-off")
            case "reloaded":
                await page.goto(site.url(cross))
            case _:
                pass
        seen = posts(page, "/cancel")
    assert seen == 0
    ended = await cross.api.ended(await latest(cross))
    assert ended["status"] == "succeeded"
    assert "".join(ended["output"]) == text


@pytest.mark.parametrize("api", ["openai", "anthropic"])
async def test_leaving_an_attached_run_cancels_it(
    browser: Browser, site: Site, cross: Pair, api: str
) -> None:
    async with started(browser, site, cross, numbered(5000, delay_ms=20)[0], api) as page:
        await page.wait_for(f"{TEXT}.length > 20")
        await page.click("#take-off")
        await until_idle(cross.stubs)
    assert (await latest(cross))["status"] == "canceled"


@pytest.mark.parametrize("api", DETACHED)
async def test_b029_it_goes_on_when_the_edge_is_killed_and_creates_once(
    browser: Browser, site: Site, cross: Pair, api: str
) -> None:
    prompt, text = numbered(400, delay_ms=10)
    before = await latest(cross)
    async with started(browser, site, cross, prompt, api) as page:
        for length in (100, 400):
            await page.wait_for(f"{TEXT}.length > {length}")
            await cross.edge.kill_and_start()
            await cross.edge.ready()
        await page.wait_for(status("finished"))
        assert await page.evaluate(TEXT) == text
        assert creates(page) == 1
        assert (await listed(cross))[1]["id"] == before["id"], "one prediction was made"
        assert all("net::ERR" in complaint for complaint in page.complaints)


async def test_an_attached_run_that_is_cut_is_truncated(browser: Browser, site: Site, cross: Pair) -> None:
    prompt, text = numbered(400, delay_ms=10)
    async with started(browser, site, cross, prompt, "openai") as page:
        await page.wait_for(f"{TEXT}.length > 100")
        await cross.edge.kill_and_start()
        await page.wait_for(status("truncated"))
        assert text.startswith(await page.evaluate(TEXT))
        assert creates(page) == 1
    await cross.edge.ready()


@pytest.mark.parametrize("api", APIS)
async def test_an_engine_s_failure_is_an_error_with_the_text_before_it(
    browser: Browser, site: Site, cross: Pair, api: str
) -> None:
    # The delay lets the status line go out before the failure.
    prompt = script(pieces=["a", "b", "c"], delay_ms=[0, 0, 1500], fail_after=2, fail_message="lamp out")
    async with started(browser, site, cross, prompt, api) as page:
        await page.wait_for(status("error"))
        assert await page.evaluate(TEXT) == "ab"
        assert "lamp out" in await page.evaluate("document.querySelector('#facts').dataset.error")
        assert creates(page) == 1


async def test_a_refusal_can_be_read_by_the_page(browser: Browser, site: Site, cross: Pair) -> None:
    async with started(browser, site, cross, 'script:{"pieces": 1}') as page:
        await page.wait_for(status("error"))
        assert "script" in await page.evaluate("document.querySelector('#facts').dataset.error")


async def test_a_token_is_needed_for_all_but_the_stream(browser: Browser, site: Site, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    token = tokens.make("ann")
    settings = {"cors_origins": site.origin, "tokens_file": str(tokens.path)}
    async with running_pair(tmp_path, edge=settings) as pair:
        for given, end in (("wrong", "error"), (token, "cancelled")):
            prompt = numbered(5000, delay_ms=20)[0]
            async with started(browser, site, pair, prompt, token=given) as page:
                if end == "cancelled":
                    await page.wait_for(f"{TEXT}.length > 20")
                    await page.click("#stop")
                await page.wait_for(status(end))
                failed = "document.querySelector('#facts').dataset.error ?? ''"
                assert ("token" in (await page.evaluate(failed)).lower()) is (end == "error")
                assert all("401" in complaint for complaint in page.complaints)
        await until_idle(pair.stubs)


async def test_b086_it_works_below_a_prefix(browser: Browser, site: Site, tmp_path: Path) -> None:
    prompt, text = numbered(50, delay_ms=5)
    settings = {"cors_origins": site.origin, "trusted_proxies": "127.0.0.1"}
    async with running_pair(tmp_path, edge=settings) as pair, prefix_proxy("/a/b", pair.edge.port) as base:
        for api, end in itertools.product(DETACHED, ("", "/")):
            async with started(browser, site, pair, prompt, api, base=base + end) as page:
                await page.wait_for(status("finished"))
                assert await page.evaluate(TEXT) == text
                ours = [url for _, url in page.requests if not url.startswith((site.origin, "data:"))]
                assert ours and all(url.startswith(f"{base}/v1/") for url in ours)
                assert page.complaints == []


async def test_a_page_of_an_origin_that_is_not_let_in_is_told_an_error(
    browser: Browser, site: Site, pair: Pair
) -> None:
    async with started(browser, site, pair, numbered(3)[0]) as page:
        await page.wait_for(status("error"))
        assert any("CORS" in complaint for complaint in page.complaints)


async def test_b029_a_hidden_page_gets_its_text_and_creates_nothing_more(
    browser: Browser, site: Site, cross: Pair
) -> None:
    prompt, text = numbered(200, delay_ms=10)
    async with started(browser, site, cross, prompt) as page:
        await page.wait_for(f"{TEXT}.length > 20")
        window = await page.send("Browser.getWindowForTarget")
        bounds = {"windowId": window["windowId"], "bounds": {"windowState": "minimized"}}
        await page.send("Browser.setWindowBounds", bounds)
        await page.wait_for("document.visibilityState === 'hidden'")
        await page.wait_for(status("finished"))
        assert await page.evaluate(TEXT) == text
        bounds["bounds"] = {"windowState": "normal"}
        await page.send("Browser.setWindowBounds", bounds)
        await page.wait_for("document.visibilityState === 'visible'")
        assert await page.evaluate(TEXT) == text
        assert (creates(page), posts(page, "/cancel")) == (1, 0)
        assert page.complaints == []
