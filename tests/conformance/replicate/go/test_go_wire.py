"""The wire behaviour of Replicate's Go client against the edge. Numbers are the contract's checks."""

from __future__ import annotations

import anyio

from tests.conformance.replicate.go.wire import GoClient, cutting_proxy
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered

POLL_S = 0.1
"""The client's own second, scaled."""


async def test_05_a_blocking_run_that_outlasts_the_wait_ends_with_the_whole_output(pair: Pair) -> None:
    prompt, text = numbered(15, delay_ms=100)
    go = GoClient(pair.http)
    with anyio.fail_after(LIMIT_S):
        url = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
        answer = await go.call("POST", url, {"input": {"prompt": prompt}}, prefer="wait=1")
        found = answer.json()
        assert (answer.status_code, found["status"], found["output"]) == (202, "starting", None)
        while found["status"] in ("starting", "processing"):
            await anyio.sleep(POLL_S)
            found = (await go.call("GET", found["urls"]["get"])).json()
    assert (found["status"], found["error"]) == ("succeeded", None)
    assert "".join(found["output"]) == text


async def test_24_a_stream_whose_connection_breaks_goes_on_after_the_last_event(pair: Pair) -> None:
    prompt, text = numbered(12, delay_ms=30)
    go = GoClient(pair.http)
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt)
        async with cutting_proxy(pair.edge.url, b"data: 2 ") as proxy:
            url = made["urls"]["stream"].replace(pair.edge.url, proxy)
            blocks = await go.stream(url, resumes=True)
    assert "".join(block.data for block in blocks if block.event == "output") == text
    assert len({block.id for block in blocks}) == len(blocks)
    first, second = go.requests
    assert "last-event-id" not in first.headers and "authorization" not in second.headers
    assert second.headers["last-event-id"] in [block.id for block in blocks]


async def test_25_the_older_stream_ends_with_one_done_after_one_get(pair: Pair) -> None:
    prompt, text = numbered(8, delay_ms=10)
    go = GoClient(pair.http)
    with anyio.fail_after(LIMIT_S):
        made = await pair.api.create(prompt)
        blocks = await go.stream(made["urls"]["stream"], resumes=False)
    assert "".join(block.data for block in blocks[:-1]) == text
    assert [block.event for block in blocks].count("done") == 1 and blocks[-1].data == "{}"
    assert len(go.requests) == 1
