"""The playground in a real browser."""

from __future__ import annotations

import ast
import json
import shlex
from typing import Any

import pytest

from tests.support.browser import Browser, Page
from tests.support.pair import MODEL, Pair, numbered, script

pytestmark = pytest.mark.browser

OUTPUT = "document.querySelector('[data-part=output]').textContent"
READY = "document.querySelector('#model').options.length"
RIVER = """A river is a natural stream of fresh water that flows on the surface or inside caves towards \
another body of water at a lower elevation, such as an ocean, a lake, or another river.

It gathers rain and melted snow from its basin, carries sand and silt, and slows down where the land is \
flat. Where it has turned a mill or a turbine, the channel that leads the water away is called a tailrace."""
PROSE = [f"{word} " for word in RIVER.split(" ")]


def phase(name: str) -> str:
    """Return the condition that the run is in a phase."""
    return f"document.querySelector('#run').dataset.phase === '{name}'"


async def open_playground(page: Page, pair: Pair, query: str = "") -> None:
    await page.goto(f"{pair.edge.url}/{query}")
    await page.wait_for(READY)


async def run(page: Page, prompt: str, **fields: str) -> None:
    for name, text in {"prompt": prompt, **fields}.items():
        await page.fill(f"#{name}", text)
    await page.click("#run-button")


def posts(page: Page, ending: str) -> list[str]:
    """Return the URLs of the POST requests with this ending."""
    return [url for method, url in page.requests if method == "POST" and url.endswith(ending)]


async def code(page: Page, name: str) -> str:
    """Choose a language's tab and return its code."""
    tabs = "[...document.querySelectorAll('#code .tab')]"
    await page.evaluate(f"{tabs}.find((tab) => tab.textContent === {json.dumps(name)}).click()")
    return await page.text("#code pre")


async def test_a_run_streams_into_the_page_and_is_kept_in_the_list(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await open_playground(page, pair)
        assert await page.nameless_controls() == []
        await page.screenshots("playground-idle")
        await page.look(width=1440)
        prompt = script(pieces=PROSE, delay_ms=25, prefill_ms=300)
        await run(page, prompt, max_tokens="400", temperature="0.7")
        await page.wait_for(phase("prefill"))
        await page.wait_for(phase("streaming"))
        await page.wait_for(f"{OUTPUT}.length > 120")
        assert not await page.is_visible("#run-button")
        await page.screenshots("playground-streaming")
        await page.wait_for(phase("done"))
        assert await page.evaluate(OUTPUT) == "".join(PROSE)
        assert await page.is_visible("#run-button") and not await page.is_visible("#stop-button")
        assert len(posts(page, "/predictions")) == 1
        link = await page.evaluate("document.querySelector('#page-anchor').href")
        made = await pair.api.get({"urls": {"get": link.replace("/p/", "/v1/predictions/")}})
        assert made["input"] == {"prompt": prompt, "max_tokens": 400, "temperature": 0.7}
        assert made["id"] in await page.evaluate("document.querySelector('#recent-list a').href")
        await page.look(width=1440)
        await run(page, "Short.")
        await page.wait_for("document.querySelectorAll('#recent-list li').length === 2")
        await page.wait_for(phase("done"))
        await page.screenshots("playground-done")
        assert page.complaints == []


async def test_stop_cancels_once(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await open_playground(page, pair)
        await run(page, numbered(1000, delay_ms=40)[0], max_tokens="2000")
        await page.wait_for(phase("streaming"))
        await page.evaluate("for (let n = 0; n < 4; n += 1) document.querySelector('#stop-button').click()")
        await page.wait_for(phase("canceled"))
        assert len(posts(page, "/cancel")) == 1
        assert await page.text(".recent-state") == "Canceled"
        assert page.complaints == []


async def test_faulty_fields_say_what_is_wrong_and_nothing_is_sent(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await open_playground(page, pair)
        await run(page, "", max_tokens="0", temperature="hot", top_p="2", top_k="1.5")
        assert await page.text("#prompt-fault") == "Write a prompt first."
        shown = [
            await page.text(f"#{name}-fault") for name in ("max_tokens", "temperature", "top_p", "top_k")
        ]
        assert shown == ["At least 1.", "Not a number.", "At most 1.", "A whole number."]
        assert posts(page, "/predictions") == []
        await page.screenshots("playground-faults")
        assert page.complaints == []


async def test_what_the_server_refuses_is_shown_at_its_field(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await open_playground(page, pair)
        await run(page, "x", stop="s" * 300)
        await page.wait_for("!document.querySelector('#stop-fault').hidden")
        assert "256 bytes" in await page.text("#stop-fault")
        await run(page, 'script:{"pieces": 1}', stop="")
        await page.wait_for("document.querySelector('#prompt-fault').textContent.includes('script')")
        assert all("422" in complaint for complaint in page.complaints)


async def test_the_code_is_exactly_this_request(browser: Browser, pair: Pair) -> None:
    prompt = 'It\'s "quoted" $HOME `id` \\n\n<b>&amp;</b> 한글 🙂 \u2028 !'
    expected: dict[str, Any] = {"prompt": prompt, "seed": 7, "stop": ["END", "'"]}
    async with browser.page() as page:
        await open_playground(page, pair)
        for name, text in (("prompt", prompt), ("seed", "7"), ("stop", "END\n'")):
            await page.fill(f"#{name}", text)
        words = shlex.split((await code(page, "curl")).replace("\\\n", ""))
        assert words[:3] == ["curl", "-s", f"{pair.edge.url}/v1/models/{MODEL}/predictions"]
        assert json.loads(words[words.index("-d") + 1]) == {"input": expected}
        tree = ast.parse(await code(page, "Python"))
        given = next(n.value for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == "input")
        assert ast.literal_eval(given) == expected
        javascript = await code(page, "JavaScript")
        literal = javascript[javascript.index("input: ") + 7 : javascript.rindex(",\n});\nfor await")]
        assert await page.evaluate(f"({literal})") == expected
        assert page.complaints == []


async def test_an_earlier_prediction_fills_the_form(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create("Once upon", system_prompt="Be brief.", top_k=5, stop=["A", "B"])
    await pair.api.ended(prediction)
    async with browser.page() as page:
        await page.goto(prediction["urls"]["web"])
        await page.click("#reuse")
        await page.wait_for(f"location.search && {READY} && document.querySelector('#prompt').value")
        names = ("prompt", "system_prompt", "top_k", "stop", "max_tokens")
        values = [await page.evaluate(f"document.querySelector('#{name}').value") for name in names]
        assert values == ["Once upon", "Be brief.", "5", "A\nB", "100000"]
        assert page.complaints == []


async def test_it_works_by_keyboard_on_a_phone(browser: Browser, pair: Pair) -> None:
    async with browser.page(width=375, height=812) as page:
        await open_playground(page, pair)
        assert not await page.is_visible("#max_tokens"), "parameters fold away on a phone"
        await page.fill("#prompt", "word" * 200)
        await page.press("Enter", ctrl=True)
        await page.wait_for(phase("done"))
        assert len(posts(page, "/predictions")) == 1
        wide = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide[0] <= wide[1] == 375
        assert page.complaints == []
