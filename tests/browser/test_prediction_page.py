"""The page of a prediction in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.browser import Browser, Page
from tests.support.pair import LIMIT_S, Pair, numbered, running_pair, script
from tests.support.prefix_proxy import prefix_proxy

pytestmark = pytest.mark.browser

OUTPUT = "document.querySelector('[data-part=output]').textContent"
KEEP_WHAT_IS_SEEN = """
  window.seen = [];
  new MutationObserver(() => window.seen.push(document.querySelector("[data-part=output]").textContent))
    .observe(document.querySelector("[data-part=output]"),
      {childList: true, characterData: true, subtree: true});
"""
SLOW = {"delay_ms": 60, "prefill_ms": 200}
NASTY = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>&lt;b&gt; </pre></noscript>"


def phase(name: str) -> str:
    """Return the condition that the page is in a phase."""
    return f"document.querySelector('#run').dataset.phase === '{name}'"


async def facts(page: Page, selector: str) -> dict[str, str]:
    """Return what a list of facts says."""
    rows = f"[...document.querySelectorAll('{selector} > div')]"
    pairs = await page.evaluate(f"{rows}.map((row) => [...row.children].map((node) => node.textContent))")
    return dict(pairs)


def asked(page: Page, part: str) -> list[str]:
    """Return the methods of the requests whose URL holds `part`."""
    return [method for method, url in page.requests if part in url]


async def open_page(page: Page, prediction: dict[str, Any], until: str) -> None:
    await page.goto(prediction["urls"]["web"])
    await page.wait_for(phase(until))


async def test_output_appears_token_by_token_before_the_end(browser: Browser, pair: Pair) -> None:
    prompt, text = numbered(40, delay_ms=60, prefill_ms=300)
    prediction = await pair.api.create(prompt, temperature=0.7, stop=["END", "\n\n"], seed=7)
    async with browser.page() as page:
        await open_page(page, prediction, "streaming")
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
        assert asked(page, "/v1/predictions/") == ["GET", "GET"], "it polled"
        timing = await facts(page, "#timing")
        assert set(timing) >= {"Created", "Started", "First token", "Completed", "Time to first token"}
        assert "–" not in timing.values()
        assert (await facts(page, "#tokens"))["Output"] == "41"
        assert await facts(page, "#settings") == {
            "max_tokens": "100000",
            "temperature": "0.7",
            "stop": '"END""\\n\\n"',
            "seed": "7",
        }
        await page.screenshots("prediction-done")
        assert page.complaints == []


async def test_queue_and_prefill_can_be_told_apart(browser: Browser, tmp_path: Path) -> None:
    async with running_pair(tmp_path, {"engine_slots": "1"}) as pair, browser.page() as page:
        before = await pair.api.create(script(pieces=["x "], repeat=1000, delay_ms=50))
        prediction = await pair.api.create(numbered(100, delay_ms=50, prefill_ms=1500)[0])
        await open_page(page, prediction, "queued")
        await page.screenshot("prediction-queued-1440-light")
        await pair.api.cancel(before)
        await page.wait_for(phase("prefill"))
        await page.screenshot("prediction-prefill-1440-light")
        await page.wait_for(phase("streaming"))
        await page.wait_for("document.querySelector('[data-part=rate]').textContent !== '–'")
        await page.screenshots("prediction-streaming")
        assert page.complaints == []


async def test_it_goes_on_by_itself_when_the_edge_is_restarted(browser: Browser, tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair, browser.page() as page:
        prompt, text = numbered(120, **SLOW)
        prediction = await pair.api.create(prompt)
        await open_page(page, prediction, "streaming")
        await page.evaluate(KEEP_WHAT_IS_SEEN)
        await pair.edge.kill()
        await page.wait_for("!document.querySelector('[data-part=notice]').hidden")
        await page.screenshot("prediction-reconnecting-1440-light")
        await pair.edge.start()
        await pair.edge.ready()
        await page.wait_for(phase("done"))
        assert await page.evaluate(OUTPUT) == text
        assert not await page.is_visible("[data-part=notice]")
        seen = await page.evaluate("window.seen")
        assert len(seen) > 10 and all(text.startswith(part) for part in seen), "lost or shown twice"
        assert [c for c in page.complaints if "ERR_CONNECTION" not in c and "INCOMPLETE" not in c] == []


async def test_opened_while_the_service_is_away_it_loads_when_that_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    edge = {"call_retry_budget": "0s", "call_deadline": "1s"}
    async with running_pair(tmp_path, edge=edge) as pair, browser.page() as page:
        prompt, text = numbered(5)
        prediction = await pair.api.create(prompt)
        await pair.api.ended(prediction)
        await pair.service.kill()
        await page.goto(prediction["urls"]["web"])
        notice = "document.querySelector('[data-part=notice]').textContent"
        await page.wait_for(f"{notice}.includes('Trying again')")
        await page.screenshot("prediction-away-1440-light")
        await pair.service.start()
        await page.wait_for(phase("done"))
        assert await page.evaluate(OUTPUT) == text
        assert not await page.is_visible("[data-part=notice]")
        assert all("503" in complaint or "504" in complaint for complaint in page.complaints)


async def test_the_policy_stops_code_that_got_in_nevertheless(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await page.goto(pair.edge.url)
        await page.evaluate(
            "document.body.innerHTML = '<img src=x onerror=\"window.pwned = 1\">';"
            "const script = document.createElement('script'); script.text = 'window.pwned = 2';"
            "document.body.append(script);"
            "fetch('http://127.0.0.1:9/').catch(() => { window.refused = true; })"
        )
        await page.wait_for("window.refused")
        assert await page.evaluate("window.pwned ?? null") is None
        refused = [complaint for complaint in page.complaints if "Content Security Policy" in complaint]
        assert len(refused) >= 3


async def test_cancel_is_asked_for_once(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(numbered(1000, **SLOW)[0])
    async with browser.page() as page:
        await open_page(page, prediction, "streaming")
        await page.evaluate(
            "for (let n = 0; n < 5; n += 1) document.querySelector('[data-part=cancel]').click()"
        )
        await page.wait_for(phase("canceled"))
        assert asked(page, "/cancel") == ["POST"]
        assert not await page.is_visible("[data-part=cancel]")
        kept = await pair.api.get(prediction)
        assert kept["status"] == "canceled"
        assert await page.evaluate(OUTPUT) == "".join(kept["output"])
        await page.screenshot("prediction-canceled-1440-light")
        assert page.complaints == []


async def test_one_that_ends_elsewhere_ends_here(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(numbered(1000, **SLOW)[0])
    async with browser.page() as page:
        await open_page(page, prediction, "streaming")
        await pair.api.cancel(prediction)
        await page.wait_for(phase("canceled"))
        assert page.complaints == []


async def test_a_finished_one_is_shown_without_its_stream_until_its_events_are_asked_for(
    browser: Browser, pair: Pair
) -> None:
    prompt, text = numbered(5)
    prediction = await pair.api.create(prompt)
    await pair.api.ended(prediction)
    async with browser.page() as page:
        await open_page(page, prediction, "done")
        assert await page.evaluate(OUTPUT) == text
        assert asked(page, "/v1/streams/") == []
        await page.click("#events > summary")
        await page.wait_for(
            "[...document.querySelectorAll('#events-rows td')].some((n) => n.textContent === 'done')"
        )
        assert asked(page, "/v1/streams/") == ["GET"]
        await page.screenshot("prediction-events-1440-light")
        assert page.complaints == []


async def test_a_failure_says_what_happened(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(script(pieces=["a ", "b "], fail_after=2, fail_message=NASTY))
    await pair.api.ended(prediction)
    async with browser.page() as page:
        await open_page(page, prediction, "failed")
        assert NASTY in await page.text("[data-part=error-text]")
        assert await page.evaluate(OUTPUT) == "a b "
        await page.screenshots("prediction-failed")
        assert page.complaints == []


async def test_removed_data_is_shown_as_removed(browser: Browser, tmp_path: Path) -> None:
    async with running_pair(tmp_path, {"retention_data": "400ms"}) as pair, browser.page() as page:
        prediction = await pair.api.create(script(pieces=["secret output"]) + " secret input")
        with anyio.fail_after(LIMIT_S):
            while not (await pair.api.get(prediction))["data_removed"]:
                await anyio.sleep(0.05)  # the sweep gives no event to wait for
        await open_page(page, prediction, "done")
        assert "removed" in await page.text("[data-part=hint]")
        assert "Removed" in await page.text("#input-body")
        assert "secret" not in await page.evaluate("document.documentElement.outerHTML")
        assert not await page.is_visible("#settings-card")
        await page.screenshots("prediction-removed")
        assert page.complaints == []


async def test_an_unknown_id_has_a_page_of_its_own(browser: Browser, pair: Pair) -> None:
    async with browser.page() as page:
        await page.goto(f"{pair.edge.url}/p/abcdefghijklmnopqrstuvwxyz")
        assert "No such prediction" in await page.text("main")
        await page.screenshots("not-found")
        assert all("404" in complaint for complaint in page.complaints)


async def test_output_and_input_are_text_whatever_they_hold(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(script(pieces=["x", NASTY, "\r\n", NASTY], delay_ms=20))
    async with browser.page() as page:
        await open_page(page, prediction, "done")
        assert await page.evaluate(OUTPUT) == f"x{NASTY}\r\n{NASTY}", "the end shows the exact text"
        assert NASTY in await page.text("#input-body")
        assert await page.evaluate("[window.pwned ?? null, document.images.length]") == [None, 1]
        assert page.complaints == []


async def test_without_scripts_the_page_shows_the_basics_as_text(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(script(pieces=["the end ", NASTY]), system_prompt=NASTY)
    await pair.api.ended(prediction)
    async with browser.page(scripts=False) as page:
        await page.goto(prediction["urls"]["web"])
        shown = await page.text(".plain")
        assert "succeeded" in shown and f"the end {NASTY}" in shown
        assert shown.count(NASTY) >= 2
        assert await page.evaluate("document.images.length") == 1
        await page.screenshot("prediction-plain-1440-light")
        assert page.complaints == []


async def test_it_fits_a_phone_and_follows_the_colour_scheme(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(script(pieces=["word" * 100, " ", "x " * 300]))
    await pair.api.ended(prediction)
    colours = set()
    for dark in (False, True):
        async with browser.page(width=375, height=812, dark=dark) as page:
            await open_page(page, prediction, "done")
            wide = await page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
            assert wide[0] <= wide[1] == 375
            colours.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.complaints == []
    assert len(colours) == 2


async def test_it_streams_and_cancels_under_a_prefix(browser: Browser, tmp_path: Path) -> None:
    async with (
        running_pair(tmp_path, edge={"trusted_proxies": "127.0.0.1"}) as pair,
        prefix_proxy("/v1/llm", pair.edge.port) as base,
        browser.page() as page,
    ):
        prediction = await pair.api.create(numbered(1000, **SLOW)[0])
        await page.goto(f"{base}/p/{prediction['id']}")
        await page.wait_for(phase("streaming"))
        await page.wait_for(f"{OUTPUT}.length > 20")
        assert f"{base}/v1/predictions/" in await page.text("#code pre")
        await page.click("[data-part=cancel]")
        await page.wait_for(phase("canceled"))
        await page.click("#reuse")
        await page.wait_for("location.search && document.querySelector('#prompt').value")
        assert all(url.startswith(base) for _, url in page.requests)
        assert page.complaints == []


async def test_a_long_output_does_not_hold_the_page_up(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(script(pieces=["word "], repeat=40_000))
    async with browser.page() as page:
        await page.goto(prediction["urls"]["web"])
        await page.wait_for(phase("done"))
        assert await page.evaluate(f"{OUTPUT}.length") == 200_000
        assert await page.evaluate("document.querySelectorAll('#events-rows tr').length") <= 500
        assert page.complaints == []


async def test_commands_can_be_reached_and_used_by_keyboard(browser: Browser, pair: Pair) -> None:
    prediction = await pair.api.create(numbered(3)[0])
    await pair.api.ended(prediction)
    async with browser.page() as page:
        await open_page(page, prediction, "done")
        assert await page.nameless_controls() == []
        await page.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.evaluate("document.querySelector('#code .tab').focus()")
        assert f"curl -s {prediction['urls']['get']}" == await page.text("#code pre")
        await page.press("ArrowRight")
        assert prediction["urls"]["stream"] in await page.text("#code pre")
        await page.press("ArrowRight")
        assert f"-X POST {prediction['urls']['cancel']}" in await page.text("#code pre")
        assert await page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        assert page.complaints == []
