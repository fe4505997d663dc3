"""Raw connections: slow, oversized and malformed requests get one answer and a close."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import anyio
import anyio.to_thread
import pytest

from edge.http.protocol import ConnectionLimits
from tests.support.edge_server import RunningEdge, edge_settings, run_edge

LIMIT_S = 20
SHORT = ConnectionLimits(
    header_deadline=timedelta(milliseconds=100),
    body_deadline=timedelta(milliseconds=200),
    idle=timedelta(seconds=1),
)
NOWHERE = "127.0.0.1:1"
HOST = b"Host: h\r\n"


@asynccontextmanager
async def edge_with(limits: ConnectionLimits | None = None) -> AsyncIterator[RunningEdge]:
    with anyio.fail_after(LIMIT_S):
        async with run_edge(edge_settings(NOWHERE), limits) as edge:
            yield edge


async def exchange(edge: RunningEdge, *sent: bytes) -> bytes:
    """Send all of `sent`, and return all that comes until the edge closes."""

    def talk() -> bytes:
        received = b""
        with edge.raw() as connection:
            try:
                for part in sent:
                    connection.sendall(part)
                while chunk := connection.recv(65536):
                    received += chunk
            except ConnectionError:
                pass
        return received

    return await anyio.to_thread.run_sync(talk)


REFUSED: list[tuple[str, bytes, int]] = [
    ("no host", b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    ("no host, 1.0", b"GET /healthz HTTP/1.0\r\n\r\n", 400),
    ("two hosts", b"GET /healthz HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400),
    ("bad host", b"GET /healthz HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    ("host with path", b"GET /healthz HTTP/1.1\r\nHost: h/x\r\n\r\n", 400),
    ("empty host", b"GET /healthz HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("no http", b"hello\r\n\r\n", 400),
    ("http/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("65 headers", b"GET /healthz HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 64 + b"\r\n", 431),
    ("17 KiB header", b"GET /healthz HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 17_000 + b"\r\n\r\n", 431),
    ("endless header", b"GET /healthz HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 100_000, 431),
    ("long target", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414),
    ("endless target", b"GET /" + b"a" * 100_000, 414),
    ("control in header", b"GET / HTTP/1.1\r\n" + HOST + b"Last-Event-ID: \x01abc\r\n\r\n", 400),
    ("bare LF", b"GET /healthz HTTP/1.1\nHost: h\n\n", 400),
    ("obs-fold", b"GET /healthz HTTP/1.1\r\n" + HOST + b"a: b\r\n c\r\n\r\n", 400),
    (
        "both lengths",
        b"POST /v1/predictions HTTP/1.1\r\n"
        + HOST
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    (
        "two lengths",
        b"POST /v1/predictions HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        400,
    ),
    ("blank before colon", b"GET /healthz HTTP/1.1\r\n" + HOST + b"a : b\r\n\r\n", 400),
    ("signed length", b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\n", 400),
]


@pytest.mark.parametrize(
    ("sent", "status"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
async def test_a_request_beyond_the_rules_gets_one_4xx_and_a_close(sent: bytes, status: int) -> None:
    async with edge_with() as edge:
        received = await exchange(edge, sent)
        assert received.startswith(f"HTTP/1.1 {status} ".encode())
        assert received.count(b"HTTP/1.1 ") == 1
        assert b"content-type: application/problem+json" in received
        assert (await edge.client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "sent", [b"GET / HT", b"GET / HTTP/1.1\r\nHost: h\r\n", b"GET / HTTP/1.1\r\nHost: h\r\na: "]
)
async def test_headers_that_do_not_arrive_are_a_408(sent: bytes) -> None:
    async with edge_with(SHORT) as edge:
        assert (await exchange(edge, sent)).startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_says_nothing_is_closed_silently() -> None:
    async with edge_with(SHORT) as edge:
        assert await exchange(edge) == b""


async def test_an_idle_connection_is_closed_also_after_blank_lines() -> None:
    request = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    async with edge_with(SHORT) as edge:
        for sent in ((request,), (request, b"\r\n")):
            received = await exchange(edge, *sent)
            assert received.startswith(b"HTTP/1.1 200 ") and received.count(b"HTTP/1.1") == 1


async def test_a_body_that_nobody_reads_ends_the_connection() -> None:
    head = b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\n{"
    async with edge_with(SHORT) as edge:
        received = await exchange(edge, head)
        assert received.startswith(b"HTTP/1.1 200 ") and received.count(b"HTTP/1.1") == 1


async def test_requests_on_one_connection_each_get_their_time() -> None:
    async with edge_with(ConnectionLimits(header_deadline=timedelta(seconds=5))) as edge:
        for _ in range(3):
            assert (await edge.client.get("/healthz")).status_code == 200


async def test_pipelined_requests_are_answered_in_order() -> None:
    one = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
    two = b"GET /nope HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    async with edge_with() as edge:
        received = await exchange(edge, one + two)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", received) == [b"200", b"404"]


async def test_an_offer_to_upgrade_is_passed_over() -> None:
    offer = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    )
    async with edge_with() as edge:

        def talk() -> bytes:
            with edge.raw() as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + offer + b"\r\n")
                return connection.recv(65536)

        assert (await anyio.to_thread.run_sync(talk)).startswith(b"HTTP/1.1 200 ")


async def test_a_reset_in_the_middle_of_a_request_is_no_error() -> None:
    async with edge_with() as edge:

        def reset() -> None:
            with edge.raw() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.sendall(
                    b"POST /v1/predictions HTTP/1.1\r\n" + HOST + b"Content-Length: 50\r\n\r\n{"
                )

        await anyio.to_thread.run_sync(reset)
        while not edge.log:
            await anyio.lowlevel.checkpoint()
        assert [line["event"] for line in edge.log] == ["http_request"]
        assert edge.log[0]["status"] == 499
