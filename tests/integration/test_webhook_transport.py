"""One attempt over real sockets: what is sent, and that no receiver can hold it up or fill memory."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import anyio
import pytest

from service.adapters.webhook_transport import HttpTransport
from service.domain.webhook_delivery import Answer
from service.domain.webhook_target import TargetPolicy
from tests.support.ports import free_port
from tests.support.webhook_receiver import OK, receiving, status

pytestmark = pytest.mark.anyio

LOOPBACK = TargetPolicy(allow_http=True, allow_private=True)
BODY = '{"text":"🙂\u2028"}'.encode()
HEADERS = {"content-type": "application/json", "webhook-id": "msg_1"}
Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def transport(limit_s: float = 5) -> HttpTransport:
    return HttpTransport(LOOPBACK, limit=timedelta(seconds=limit_s))


async def test_the_bytes_are_sent_as_given() -> None:
    async with receiving() as receiver:
        answer = await transport().post(receiver.url, HEADERS, BODY)
        (call,) = receiver.received
    assert (answer.status, answer.accepted, answer.error) == (204, True, "")
    assert (call.target, call.raw) == ("/hook?a=b", BODY)
    assert call.headers == {
        **HEADERS,
        "host": f"127.0.0.1:{receiver.port}",
        "connection": "close",
        "content-length": str(len(BODY)),
    }


@pytest.mark.parametrize("code", [200, 299, 300, 404, 410, 429, 500, 599])
async def test_the_status_is_the_answer(code: int) -> None:
    async with receiving(status(code)) as receiver:
        assert (await transport().post(receiver.url, HEADERS, BODY)).status == code


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 0 ", 0),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("9" * 12, None),
        ("²", None),
        ("", None),
    ],
)
async def test_retry_after_in_seconds(value: str, seconds: int | None) -> None:
    async with receiving(f"HTTP/1.1 429 X\r\nRetry-After: {value}\r\n\r\n".encode("latin-1")) as receiver:
        answer = await transport().post(receiver.url, HEADERS, BODY)
    assert answer.retry_after == (None if seconds is None else timedelta(seconds=seconds))


async def test_retry_after_as_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    async with receiving(status(503, f"retry-after: {later}")) as receiver:
        answer = await transport().post(receiver.url, HEADERS, BODY)
    assert answer.retry_after is not None and 80 < answer.retry_after.total_seconds() <= 90


async def attempt(peer: Peer, limit_s: float, scheme: str = "http") -> tuple[Answer, float]:
    """Return the answer of a peer that does as it likes, and how long it took."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]  # it is one
        try:
            await peer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    began_s = anyio.current_time()
    try:
        answer = await transport(limit_s).post(f"{scheme}://127.0.0.1:{port}/", HEADERS, BODY)
        return answer, anyio.current_time() - began_s
    finally:
        listener.close()
        for task in tasks:
            task.cancel()


async def drip(writer: asyncio.StreamWriter, head: bytes, chunk: bytes) -> None:
    writer.write(head)
    while True:
        writer.write(chunk)
        await writer.drain()
        await anyio.sleep(0.02)


async def test_a_receiver_that_never_answers_is_given_up() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anyio.sleep_forever()

    answer, took_s = await attempt(peer, 0.2)
    assert "no answer within 0.2 s" in str(answer) and took_s < 2


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n", b"", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_head_that_drips_is_given_up(head: bytes) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chunk = b"HTTP/1.1 100 Continue\r\n\r\n" if b"100" in head else b"x: y\r\n" if head else b"H"
        await drip(writer, head, chunk)

    answer, took_s = await attempt(peer, 0.3)
    assert answer.status == 0 and took_s < 2


async def test_a_body_that_drips_or_never_ends_changes_nothing() -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await drip(writer, b"HTTP/1.1 200 OK\r\ncontent-length: 999999\r\n\r\n", b"x")

    answer, took_s = await attempt(peer, 5)
    assert answer.status == 200 and took_s < 3


async def test_ten_megabytes_are_not_read() -> None:
    sent = 0

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x" * 10_000)
            await writer.drain()
            sent += 10_000

    answer, _ = await attempt(peer, 5)
    assert answer.status == 200 and sent < 10_000_000


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x16\x03\x01",
        b"HTTP/1.1 nonsense\r\n\r\n",
        b"220 smtp ready\r\n",
        b"HTTP/1.1 200 OK\r\nbroken\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_a_failure_and_no_exception(said: bytes) -> None:
    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()

    answer, _ = await attempt(peer, 5)
    assert answer.status == 0 and answer.error


async def test_nobody_listening_is_a_failure() -> None:
    answer = await transport().post(f"http://127.0.0.1:{free_port()}/", HEADERS, BODY)
    assert answer.error == "the connection was refused or could not be made"


# ------------------------------------------------------------------------------------------- TLS


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's context for `name`, and the certificate itself."""
    key, made = folder / "key.pem", folder / "cert.pem"
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split()
    named = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"]
    command = [*new, *named, "-keyout", str(key), "-out", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificates of these tests")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    return context, made


async def loopback(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_tls_goes_by_the_name_and_the_connection_by_the_address(tmp_path: Path) -> None:
    server, made = certificate(tmp_path, "hook.example")
    names: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: names.append(name)
    async with receiving(OK, ssl=server) as receiver:
        url = f"https://hook.example:{receiver.port}/x"
        trusting = HttpTransport(
            LOOPBACK, resolver=loopback, ssl_context=ssl.create_default_context(cafile=made)
        )
        answer = await trusting.post(url, HEADERS, BODY)
        (call,) = receiver.received
        distrusting = HttpTransport(LOOPBACK, resolver=loopback)
        refused = await distrusting.post(url, HEADERS, BODY)
        other = await trusting.post(f"https://other.example:{receiver.port}/x", HEADERS, BODY)
    assert answer.accepted and call.headers["host"] == f"hook.example:{receiver.port}"
    assert names[0] == "hook.example"
    assert refused.error == other.error == "the receiver's certificate could not be verified"
    assert len(receiver.received) == 1, "nothing was sent to a receiver that is not the one named"


async def test_a_receiver_that_speaks_no_tls_gets_nothing_and_is_let_go() -> None:
    read = b""

    async def peer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal read
        while chunk := await reader.read(65536):
            read += chunk
            if anything:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

    for turn in (True, False):
        anything = turn
        answer, took_s = await attempt(peer, 0.3, scheme="https")
        assert answer.status == 0 and took_s < 2
    assert BODY not in read and b"POST" not in read
