"""The page of a prediction in a real browser."""

from __future__ import annotations

import pytest

from tests.support.browser import Browser
from tests.support.pair import Pair, numbered, script

pytestmark = pytest.mark.browser

OUTPUT = "document.querySelector('[data-part=output]').textContent"


def phase(name: str) -> str:
    """Return the condition that the page is in a phase."""
    return f"document.querySelector('#run').dataset.phase === '{name}'"


async def test_output_appears_token_by_token_before_the_end(browser: Browser, pair: Pair) -> None:
    prompt, text = numbered(25, delay_ms=80, prefill_ms=300)
    prediction = await pair.api.create(prompt)
    async with browser.page() as page:
        await page.goto(prediction["urls"]["web"])
        await page.wait_for(phase("streaming"))
        lengths = await page.evaluate(
            f"""new Promise((resolve) => {{
              const seen = [];
              const look = () => {{
                const length = {OUTPUT}.length;
                if (seen.at(-1) !== length) seen.push(length);
                if ({phase("done")}) resolve(seen); else setTimeout(look, 10);
              }};
              look();
            }})"""
        )
        assert len(lengths) > 10, "it came in a few large pieces"
        assert await page.evaluate(OUTPUT) == text
        await page.screenshots("prediction-done")
        assert page.complaints == []
