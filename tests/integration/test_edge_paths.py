"""Paths, prefixes and the URLs in answers: B080, B081, B083, B086, B151. And `/openapi.json`, `/docs`."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edge.app import create_app
from edge.http.lifecycle import Lifecycle
from edge.replicate.deployments import parse_deployments
from edge.replicate.endpoints import ENDPOINTS
from edge.replicate.routing import build_routes
from edge.upstream.calls import CallPolicy
from edge.upstream.connection import open_upstream
from tests.support.edge_server import SECRET, RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, WEIGHTS, FakeService, serve_fake

LIMIT_S = 30
PROBLEM = "application/problem+json"
BODY = {"version": MODEL, "input": {"prompt": "x"}}
DEPLOYMENTS = parse_deployments('{"acme/chat": {"model": "acme/llm"}}')
READ = [
    "/predictions", "/models", f"/models/{MODEL}", f"/models/{MODEL}/versions",
    f"/models/{MODEL}/versions/{WEIGHTS}", f"/models/{MODEL}/readme", f"/models/{MODEL}/examples", "/search",
    "/deployments", "/deployments/acme/chat", "/account", "/hardware", "/collections", "/trainings",
]  # fmt: skip
TEXT = [f"/models/{MODEL}/readme"]


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with (
            serve_fake(service),
            run_edge(edge_settings(service.address, deployments=DEPLOYMENTS, **changes)) as edge,
        ):
            yield edge


def urls_in(value: object) -> Iterator[str]:
    """Yield all absolute URLs in an answer."""
    match value:
        case dict():
            for member in value.values():
                yield from urls_in(member)
        case list():
            for member in value:
                yield from urls_in(member)
        case str() if re.match(r"https?://", value):
            yield value


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_b080_every_route_is_served_with_and_without_slash(prefix: str) -> None:
    async with edge_on(FakeService(texts=["a"])) as edge:
        made = (await edge.client.post(f"{prefix}/predictions/", json=BODY)).json()
        paths = [
            *READ,
            f"/predictions/{made['id']}",
            urlsplit(made["urls"]["stream"]).path.removeprefix("/v1"),
        ]
        for path in paths:
            plain = await edge.client.get(prefix + path)
            slashed = await edge.client.get(f"{prefix}{path}/")
            assert plain.status_code == slashed.status_code == 200, path
            assert plain.content == slashed.content and "location" not in slashed.headers
        for path in (f"/models/{MODEL}/predictions/", "/deployments/acme/chat/predictions/"):
            assert (await edge.client.post(prefix + path, json=BODY)).status_code == 201
        assert (await edge.client.post(f"{prefix}/predictions/{made['id']}/cancel/")).status_code == 200
        for path in ("/healthz/", "/readyz/", "/openapi.json/", "/docs/"):
            assert (await edge.client.get(path)).status_code == 200


@pytest.mark.parametrize("keeps_prefix", [True, False], ids=["proxy passes it on", "proxy strips it"])
async def test_b081_under_a_prefix_every_url_resolves_when_opened(keeps_prefix: bool) -> None:
    async with edge_on(FakeService(texts=["a"]), public_url="https://h.example/llm") as edge:

        def opened(url: str) -> str:
            """Return the path at which a request for `url` arrives."""
            assert url.startswith("https://h.example/llm/") and url.count("/llm/") == 1, url
            return url.removeprefix("https://h.example" + ("" if keeps_prefix else "/llm"))

        start = "/llm" if keeps_prefix else ""
        for _ in range(101):
            answer = await edge.client.post(f"{start}/v1/predictions", json=BODY)
        found = {answer.headers["location"], *urls_in(answer.json())}
        for path in ("/openapi.json", *(f"/v1{path}" for path in READ if path not in TEXT)):
            found |= set(urls_in((await edge.client.get(start + path)).json()))
        found -= {f"https://h.example/llm{rest}" for rest in ("", "/v1")}  # bases, not pages
        web = {url for url in found if "/p/" in url}
        assert any("cursor=" in url for url in found) and any("/streams/" in url for url in found) and web
        for url in found - web:
            method = "POST" if url.endswith("/cancel") else "GET"
            assert (await edge.client.request(method, opened(url))).status_code == 200, url
        page = (await edge.client.get(f"{start}/docs")).text
        (link,) = re.findall(r'href="([^"]+)"', page)
        assert (await edge.client.get(opened(link))).status_code == 200


async def test_b081_a_root_path_of_the_server_is_in_every_url_once() -> None:
    service = FakeService(texts=["a"])
    async with serve_fake(service), open_upstream(service.address, CallPolicy()) as upstream:
        log = structlog.wrap_logger(structlog.ReturnLogger(), wrapper_class=structlog.BoundLogger)
        app = create_app(edge_settings(service.address), upstream, Lifecycle(), SECRET, log)
        transport = httpx.ASGITransport(app, root_path="/llm")
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            made = (await client.post("/llm/v1/predictions/", json=BODY)).json()
            for url in made["urls"].values():
                assert url.startswith("http://127.0.0.1:8000/llm/") and url.count("/llm") == 1
            assert (await client.get(made["urls"]["get"])).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-proto": "https", "x-forwarded-host": "h.example", "x-forwarded-prefix": "/llm"},
        {
            "x-forwarded-proto": "evil, https",
            "x-forwarded-host": "e, h.example",
            "x-forwarded-prefix": "/llm/",
        },
    ],
)
async def test_b083_a_trusted_proxy_names_scheme_host_and_prefix_of_every_url(
    headers: dict[str, str],
) -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service, trusted_proxies=("127.0.0.1",)) as edge:
        answer = await edge.client.post("/v1/predictions/", json=BODY, headers=headers)
        assert answer.status_code == 201
        urls = [answer.headers["location"], *urls_in(answer.json())]
        for path in ("/v1/models/", "/openapi.json/"):
            urls += urls_in((await edge.client.get(path, headers=headers)).json())
        assert len(urls) > 6 and all(url.startswith("https://h.example/llm") for url in urls)
        forwarded = {"forwarded": "for=192.0.2.1;proto=https;host=h.example"}
        made = (await edge.client.post("/v1/predictions/", json=BODY, headers=forwarded)).json()
        assert made["urls"]["get"].startswith("https://h.example/v1/")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nope", 404), ("GET", "/nope", 404), ("POST", "/v1", 404),
        ("GET", "/v1/predictions//", 404),
        ("GET", "/v1/predictions/%ff", 404), ("GET", "/v1/%ff", 404), ("GET", "/v1/models/%ff/%00", 404),
        ("GET", "/%2e%2e/v1/predictions", 404), ("PUT", "/v1/models", 405),
        ("TRACE", "/v1/predictions", 405),
        ("PATCH", "/openapi.json", 405), ("GET", "/V1/predictions", 404), ("GET", "/llm/v1/predictions", 404),
    ],
)  # fmt: skip
async def test_b151_refusals_by_path_and_method_are_problems(method: str, path: str, status: int) -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)
        assert answer.json().keys() >= {"title", "detail", "status"} and answer.json()["status"] == status


async def test_b097_an_accept_of_a_browser_gets_json_too() -> None:
    async with edge_on(FakeService(texts=["a"])) as edge:
        made = (await edge.client.post("/v1/predictions", json=BODY)).json()
        for accept in ("application/json", "text/html,application/xhtml+xml,*/*;q=0.8"):
            answer = await edge.client.get(made["urls"]["get"], headers={"accept": accept})
            assert answer.headers["content-type"] == "application/json"


async def test_a_percent_encoded_path_means_the_same() -> None:
    async with edge_on(FakeService(texts=["a"])) as edge:
        made = (await edge.client.post("/v1/predictions", json=BODY)).json()
        for path in (f"/v1/prediction%73/{made['id']}", "/v1/models/%61cme/llm", "/v1/models/acme%2Fllm"):
            assert (await edge.client.get(path)).status_code == 200


async def test_the_document_has_the_routes_that_serve_and_no_other() -> None:
    async with edge_on(FakeService()) as edge:
        document = (await edge.client.get("/openapi.json")).json()
    described = {
        (method.removeprefix("x-").upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
    }
    assert described == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}

    async def handler(request: Request) -> Response:
        raise AssertionError

    routes = build_routes(ENDPOINTS, {endpoint.operation: handler for endpoint in ENDPOINTS})
    served = {
        (method, route.path)
        for route in routes
        if isinstance(route, Route)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert served == {(method, prefix + path) for method, path in described for prefix in ("", "/v1")}


def test_an_endpoint_without_handler_and_a_handler_without_endpoint_stop_the_start() -> None:
    with pytest.raises(ValueError, match=r"account\.get, ours"):
        build_routes([e for e in ENDPOINTS if e.operation == "account.get"], {"ours": None})  # type: ignore[dict-item]  # never called


async def test_the_reference_page_needs_nothing_else_and_says_so() -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.get("/docs")
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert re.findall(r"<(script|img|link|iframe|form)\b|\son[a-z]+=|\sstyle=", answer.text) == []
        assert all(endpoint.path in answer.text for endpoint in ENDPOINTS)
        for word in ("input.prompt", "Cancel-After", "created_after"):
            assert word in answer.text
