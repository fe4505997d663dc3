"""Bodies and routing over HTTP: every malformed request is one clear 4xx, and the edge lives on."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import pytest

from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakeService, serve_fake

LIMIT_S = 20


@asynccontextmanager
async def edge_on(service: FakeService, **changes: object) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


def wrapped(inner: bytes) -> bytes:
    return b'{"version":"acme/llm","input":' + inner + b"}"


BODIES: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b'{"a":1}x', 400),
    (b"{'a':1}", 400),
    (b'{"a":NaN}', 400),
    (b"\xef\xbb\xbf{}", 422),
    (b'{"a":1,"a":2}', 422),
    ('{"a":1}'.encode("utf-16"), 400),
    ('{"a":"é"}'.encode("latin-1"), 400),
    (gzip.compress(b"{}"), 400),
    (b" " * 2_000_000, 413),
    (b"[" * 20_000, 400),
    (b"[" * 100_000, 400),
    (wrapped(b"[" * 20_000), 400),
    (wrapped(b'{"prompt":"x","json_schema":' + b'{"a":' * 40 + b"1" + b"}" * 41), 400),
    (wrapped(b'{"prompt":"\xff\xfe"}'), 400),
    *((body, 422) for body in (b"[]", b"null", b'"x"', b"5", b"true")),
    *((wrapped(inner), 422) for inner in (b"null", b"[]", b'"x"', b'{"prompt":5}', b'{"messages":{}}')),
    (wrapped(b'{"messages":[{"role":"user","content":5}]}'), 422),
]


@pytest.mark.parametrize(("body", "status"), BODIES, ids=range(len(BODIES)))
async def test_a_bad_body_is_one_clear_problem(body: bytes, status: int) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        answer = await edge.client.post("/v1/predictions", content=body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        members = answer.json()
        assert members["status"] == status and members["title"] and members["detail"].isascii()
        assert not service.requests("CreatePrediction")
        assert (await edge.client.get("/healthz")).status_code == 200


async def test_a_compressed_body_is_a_415() -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post(
            "/v1/predictions", content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"}
        )
        assert answer.status_code == 415


async def test_no_content_type_means_json() -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/predictions", content=wrapped(b'{"prompt":"x"}'))
        assert answer.status_code == 201


async def test_a_chunked_body_is_bounded_too() -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 65536

    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/predictions", content=large())
        assert answer.status_code == 413 and answer.headers["connection"] == "close"


async def test_a_body_that_does_not_arrive_is_a_408() -> None:
    async with edge_on(FakeService(), body_deadline=timedelta(milliseconds=50)) as edge:
        connection = edge.raw()

        def ask() -> bytes:
            connection.sendall(b"POST /v1/predictions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{")
            received = b""
            while chunk := connection.recv(4096):
                received += chunk
            connection.close()
            return received

        received = await anyio.to_thread.run_sync(ask)
        assert received.startswith(b"HTTP/1.1 408") and b'"Request timeout"' in received


async def test_header_values_beyond_ascii_are_no_error() -> None:
    async with edge_on(FakeService(texts=["a"])) as edge:
        headers = [(b"prefer", b"wa\xffit"), (b"last-event-id", b"\xff"), (b"x-thing", b"\xe9")]
        answer = await edge.client.post(
            "/v1/predictions", json={"version": MODEL, "input": {"prompt": "x"}}, headers=headers
        )
        assert answer.status_code == 201
        assert (await edge.client.get(answer.json()["urls"]["stream"], headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("GET", "/v1/nope/", 404, None),
        ("PUT", "/v1/predictions", 405, {"POST"}),
        ("DELETE", "/v1/predictions/" + "a" * 26, 405, {"GET", "HEAD", "PUT"}),
        ("OPTIONS", "/v1/predictions", 204, {"POST", "OPTIONS"}),
        ("OPTIONS", "/v1/predictions/" + "a" * 26, 204, {"GET", "HEAD", "PUT", "OPTIONS"}),
        ("HEAD", "/healthz", 200, None),
        ("HEAD", "/readyz/", 200, None),
    ],
)
async def test_routing(method: str, path: str, status: int, allow: set[str] | None) -> None:
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.request(method, path)
        assert answer.status_code == status
        if status >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
        if allow is not None:
            assert {name.strip() for name in answer.headers["allow"].split(",")} == allow


async def test_each_request_has_one_access_line_without_query_or_token() -> None:
    async with edge_on(FakeService(texts=["a"])) as edge:
        made = (await edge.client.post("/v1/predictions?x=SECRET", json=_create())).json()
        await edge.client.get(made["urls"]["stream"] + "?last_event_id=SECRET")
        lines = [line for line in edge.log if line["event"] == "http_request"]
        assert [(line["method"], line["status"]) for line in lines] == [("POST", 201), ("GET", 200)]
        assert "SECRET" not in str(edge.log) and made["urls"]["stream"][-26:] not in str(edge.log)


async def test_an_unknown_failure_is_a_fixed_500_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("SECRET")

    monkeypatch.setattr("edge.replicate.routes.render_created", fail)
    async with edge_on(FakeService()) as edge:
        answer = await edge.client.post("/v1/predictions", json=_create())
        assert answer.status_code == 500 and "SECRET" not in answer.text
        assert answer.headers["x-should-retry"] == "false"
        assert any(line["event"] == "http_request_failed" for line in edge.log)


def _create() -> dict[str, object]:
    return {"version": MODEL, "input": {"prompt": "x"}}
