"""The web pages over HTTP: answers, headers, caching, and that pages are HTML and the API is JSON."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import cast

import anyio
import grpc
import httpx
import pytest
from starlette.requests import Request

from edge.protocol.public_url import PublicBase
from edge.upstream.connection import Upstream
from edge.web.answers import SECURITY_HEADERS
from edge.web.assets import load_assets
from edge.web.routes import WebOptions, WebPages
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakeService, Fault, serve_fake

LIMIT_S = 20
NASTY = "</noscript><script>alert(1)</script>"
UNKNOWN = "abcdefghijklmnopqrstuvwxyz"
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
LINK = re.compile(r'(?:src|href)="([^"]*/assets/[^"]+)"')


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


async def create(edge: RunningEdge, prompt: str = "x") -> dict[str, str]:
    answer = await edge.client.post("/v1/predictions", json={"version": MODEL, "input": {"prompt": prompt}})
    urls: dict[str, str] = answer.json()["urls"]
    return urls


def is_page(answer: httpx.Response) -> bool:
    return answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("accept", ["*/*", "application/json", BROWSER["accept"]])
async def test_b097_pages_are_html_and_the_api_is_json_whatever_accept_says(accept: str) -> None:
    async with edge_on(FakeService()) as edge:
        urls = await create(edge)
        for url in (urls["web"], f"{edge.url}/", f"{edge.url}/p/{UNKNOWN}"):
            assert is_page(await edge.client.get(url, headers={"accept": accept}))
        for method, url in (("GET", urls["get"]), ("POST", urls["cancel"])):
            answer = await edge.client.request(method, url, headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        missing = await edge.client.get(f"/v1/predictions/{UNKNOWN}", headers={"accept": accept})
        assert missing.headers["content-type"] == "application/problem+json"
        created = await edge.client.post(
            "/v1/predictions", json={"version": MODEL, "input": {"prompt": "x"}}, headers={"accept": accept}
        )
        assert created.headers["content-type"] == "application/json"


async def test_every_page_has_the_security_headers_and_is_not_kept() -> None:
    async with edge_on(FakeService()) as edge:
        urls = await create(edge)
        for url in (urls["web"], "/", f"/p/{UNKNOWN}", "/p/..%2f", "/p/UPPER"):
            answer = await edge.client.get(url)
            assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
            assert answer.headers["cache-control"] == "no-store"
            assert (await edge.client.head(url)).headers["content-type"] == answer.headers["content-type"]


async def test_the_page_is_there_from_creation_on_and_shows_the_basics_as_text() -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        urls = await create(edge, NASTY)
        answer = await edge.client.get(urls["web"])
        assert answer.status_code == 200
        assert NASTY not in answer.text and "&lt;script&gt;alert(1)" in answer.text
        assert "starting" in answer.text


@pytest.mark.parametrize("given", [UNKNOWN, "nope", "UPPER", "a" * 65, "%3Cscript%3E"])
async def test_an_unknown_id_is_a_404_page(given: str) -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.get(f"/p/{given}", headers=BROWSER)
        assert answer.status_code == 404 and is_page(answer)
        assert "No such prediction" in answer.text and "<script>" not in answer.text


async def test_without_the_service_the_page_is_served_and_asks_again_by_itself() -> None:
    service = FakeService()
    async with edge_on(service, call_retry_budget=timedelta(0)) as edge:
        service.faults["GetPrediction"].append(Fault(grpc.StatusCode.UNAVAILABLE))
        answer = await edge.client.get(f"/p/{UNKNOWN}")
        assert answer.status_code == 200 and UNKNOWN in answer.text


async def test_files_are_kept_for_ever_under_their_version_and_asked_about_under_any_other() -> None:
    assets = load_assets()
    async with edge_on(FakeService()) as edge:
        for link in LINK.findall((await edge.client.get("/")).text):
            answer = await edge.client.get(link)
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            again = await edge.client.get(
                link, headers={"if-none-match": f'"other", {answer.headers["etag"]}'}
            )
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == answer.headers["etag"]
        other = await edge.client.get("/assets/0123456789abcdef/app.css")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache")
        assert other.content == assets.by_name["app.css"].body
        assert (await edge.client.get(f"/assets/{assets.version}/nothing.js")).status_code == 404
        assert (await edge.client.get(f"/assets/{assets.version}/..%2froutes.py")).status_code == 404
        icon = await edge.client.get("/favicon.ico")
        assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")


@pytest.mark.parametrize("prefix", ["", "/llm", "/a/b"])
async def test_b081_page_and_files_resolve_below_a_prefix(prefix: str) -> None:
    forwarded = {"x-forwarded-prefix": prefix} if prefix else {}
    async with edge_on(FakeService(), trusted_proxies=("127.0.0.1",)) as edge:
        urls = await create(edge)
        for path in (httpx.URL(urls["web"]).path, "/", f"/p/{UNKNOWN}", f"/p/{UNKNOWN}/"):
            text = (await edge.client.get(path, headers=forwarded)).text
            links = LINK.findall(text)
            assert len(links) >= 3
            for link in links:
                assert link.startswith(f"{prefix}/assets/")
                stripped = link.removeprefix(prefix)
                assert (await edge.client.get(stripped, headers=forwarded)).status_code == 200
            assert f'data-prefix="{prefix}"' in text
            assert f'href="{prefix}/"' in text


async def test_with_tokens_the_page_tells_nothing_and_asks_nobody() -> None:
    options = WebOptions(
        load_assets(),
        base_of=lambda request: PublicBase("http", "h"),
        input_of=lambda record: {},
        is_open=False,
    )
    pages = WebPages(cast(Upstream, None), options)  # nothing to ask

    async def shell(prediction_id: str) -> str:
        scope = {"type": "http", "headers": [], "path_params": {"prediction_id": prediction_id}}
        answer = await pages.prediction(Request(scope))
        assert answer.status_code == 200
        return bytes(answer.body).decode().replace(prediction_id, "ID")

    assert await shell(UNKNOWN) == await shell("another-id-of-mine")


async def test_models_of_the_playground_and_their_problem() -> None:
    service = FakeService()
    async with edge_on(service, call_retry_budget=timedelta(0)) as edge:
        answer = await edge.client.get("/playground/models.json")
        assert answer.json()["models"] == [
            {
                "name": MODEL,
                "state": "ready",
                "engine": service.models[0].engine,
                "context_tokens": service.models[0].context_tokens,
                "chat_template": True,
            }
        ]
        assert answer.headers["cache-control"] == "no-store"
