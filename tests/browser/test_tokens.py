"""The pages of an edge that asks for API tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.browser import Browser, Page
from tests.support.pair import Pair, numbered, running_pair
from tests.support.tokens import TokenFile, bearer

pytestmark = pytest.mark.browser

OUTPUT = "document.querySelector('[data-part=output]').textContent"
ASKED = "!document.querySelector('#token').hidden"


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pair, TokenFile]]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    tokens.make("nobody")
    async with running_pair(folder, edge={"tokens_file": str(tokens.path)}) as pair:
        yield pair, tokens


def phase(name: str) -> str:
    """Return the condition that the page is in a phase."""
    return f"document.querySelector('#run').dataset.phase === '{name}'"


async def give(page: Page, token: str) -> None:
    await page.wait_for(ASKED)
    await page.fill("#token-value", token)
    await page.press("Enter")


async def test_b092_a_page_streams_after_its_reader_gave_a_token(
    browser: Browser, guarded: tuple[Pair, TokenFile]
) -> None:
    pair, tokens = guarded
    token = tokens.make("ann")
    prompt, text = numbered(60, delay_ms=50)
    prediction = await pair.api.create(prompt, bearer(token))
    async with browser.page() as page:
        await page.goto(prediction["urls"]["web"])
        await page.wait_for(ASKED)
        assert "script:" not in await page.evaluate("document.documentElement.outerHTML")
        await page.screenshots("token")
        await give(page, "wrong")
        await page.wait_for("document.querySelector('#token-why').textContent.includes('not accepted')")
        await give(page, token)
        await page.wait_for(phase("streaming"))
        await page.wait_for(phase("done"))
        assert await page.evaluate(OUTPUT) == text
        assert "$REPLICATE_API_TOKEN" in await page.text("#code pre")
        await page.goto(prediction["urls"]["web"])
        await page.wait_for(phase("done"))
        assert not await page.is_visible("#token"), "the tab knows it"
        assert await page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        assert token not in await page.evaluate("document.documentElement.outerHTML")
        assert not any(token in url for _, url in page.requests)
        assert all("401" in complaint for complaint in page.complaints)


async def test_somebody_elses_prediction_looks_like_none(
    browser: Browser, guarded: tuple[Pair, TokenFile]
) -> None:
    pair, tokens = guarded
    prediction = await pair.api.create(numbered(3)[0], bearer(tokens.make("ann")))
    async with browser.page() as page:
        await page.goto(prediction["urls"]["web"])
        await give(page, tokens.make("bob"))
        await page.wait_for("!document.querySelector('#missing').hidden")
        assert not await page.is_visible("#prediction")
        await page.screenshot("missing-1440-light")


async def test_the_playground_works_with_a_token(browser: Browser, guarded: tuple[Pair, TokenFile]) -> None:
    pair, tokens = guarded
    async with browser.page() as page:
        await page.goto(pair.edge.url)
        await give(page, tokens.make("cyd"))
        await page.wait_for("document.querySelector('#model').options.length")
        await page.fill("#prompt", numbered(500, delay_ms=50)[0])
        await page.click("#run-button")
        await page.wait_for(phase("streaming"))
        await page.click("#stop-button")
        await page.wait_for(phase("canceled"))
        assert "REPLICATE_API_TOKEN" in await page.text("#code pre")
        assert all("401" in complaint for complaint in page.complaints)
