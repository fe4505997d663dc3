"""Webhook calls reach public addresses only: hostile URLs, names, redirects and resolvers get 0 bytes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import anyio
import httpcore
import pytest

from service.adapters.webhook_transport import HttpTransport, JudgingBackend, resolve
from service.domain.webhook_target import BadTarget, TargetPolicy
from tests.support.hostile_urls import HOSTILE_URLS
from tests.support.webhook_receiver import Receiver, receiving, status
from tests.unit.service.test_address_policy import NEVER, PRIVATE

pytestmark = pytest.mark.anyio

STRICT = TargetPolicy()
LOOPBACK = TargetPolicy(allow_http=True, allow_private=True)
BODY = b'{"secret":1}'
ADDRESSES = [*NEVER, *PRIVATE]


class RecordingSockets(httpcore.AsyncNetworkBackend):
    """Notes whom the transport would connect to, and refuses."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> Any:
        self.asked.append((host, port))
        raise httpcore.ConnectError("recorded")


def watched(
    policy: TargetPolicy, answers: Iterable[list[str]]
) -> tuple[HttpTransport, RecordingSockets, list[str]]:
    """Return a transport whose resolver gives these answers in turn, and what it did."""
    sockets, names, turns = RecordingSockets(), list[str](), iter(answers)

    async def resolver(host: str, port: int) -> list[str]:
        names.append(host)
        return next(turns)

    transport = HttpTransport(policy, resolver=resolver)
    transport._sockets = sockets
    return transport, sockets, names


def judging(policy: TargetPolicy) -> JudgingBackend:
    return JudgingBackend(policy, resolve, httpcore.AnyIOBackend())


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.mark.parametrize("url", HOSTILE_URLS)
async def test_a_hostile_url_is_neither_resolved_nor_called(url: str, receiver: Receiver) -> None:
    transport, sockets, names = watched(STRICT, [])
    answer = await transport.post(url.replace("P", str(receiver.port)), {}, BODY)
    assert answer.status == 0 and answer.error.startswith("the URL must")
    assert sockets.asked == names == []
    real = await HttpTransport(STRICT).post(url.replace("P", str(receiver.port)), {}, BODY)
    assert real.status == 0
    assert (receiver.connections, receiver.bytes_read) == (0, 0)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("beside", [[], ["93.184.215.14"]], ids=["alone", "beside a public one"])
async def test_a_name_with_a_forbidden_address_is_not_called(address: str, beside: list[str]) -> None:
    for found in ([*beside, address], [address, *beside]):
        transport, sockets, names = watched(STRICT, [found])
        answer = await transport.post("https://h.example/", {}, BODY)
        assert answer.error == "the host has a private, local or reserved address"
        assert sockets.asked == [] and names == ["h.example"]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_a_forbidden_address_written_out_is_not_called(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    transport, sockets, names = watched(TargetPolicy(allow_http=True), [])
    for scheme in ("http", "https"):
        answer = await transport.post(f"{scheme}://{host}/", {}, BODY)
        assert answer.status == 0 and answer.error
    assert sockets.asked == names == []


async def test_a_name_of_a_listening_socket_gets_no_connection(receiver: Receiver) -> None:
    # Below the URL's checks, so that the port does not already refuse it.
    for name in ("localhost", "127.0.0.1"):
        with pytest.raises(BadTarget):
            await judging(STRICT).connect_tcp(name, receiver.port)
    assert (receiver.connections, receiver.bytes_read) == (0, 0)
    stream = await judging(LOOPBACK).connect_tcp("localhost", receiver.port)
    await stream.aclose()


async def test_rebinding_the_address_judged_is_the_one_connected_to() -> None:
    transport, sockets, names = watched(STRICT, [["93.184.215.14"], ["127.0.0.1"], ["1.1.1.1", "8.8.8.8"]])
    for _ in range(3):
        await transport.post("https://h.example/", {}, BODY)
    # One resolution an attempt; the second attempt met the rebound name and connected to nothing.
    assert names == ["h.example"] * 3
    assert sockets.asked == [("93.184.215.14", 443), ("1.1.1.1", 443), ("8.8.8.8", 443)]


@pytest.mark.parametrize("code", [300, 301, 302, 303, 304, 307, 308])
async def test_redirects_are_not_followed(code: int) -> None:
    async with (
        receiving() as inner,
        receiving(status(code, f"location: {inner.url}", "content-type: x")) as outer,
    ):
        answer = await HttpTransport(LOOPBACK).post(outer.url, {}, BODY)
        assert (answer.status, answer.accepted) == (code, False)
        assert outer.connections == 1
        assert (inner.connections, inner.bytes_read) == (0, 0)


async def test_proxies_of_the_environment_are_not_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{receiver.port}")
    transport, sockets, _ = watched(STRICT, [["93.184.215.14"]])
    await transport.post("https://h.example/", {}, BODY)
    assert sockets.asked == [("93.184.215.14", 443)]
    assert receiver.connections == 0


async def test_no_file_is_a_target() -> None:
    with pytest.raises(BadTarget):
        await judging(LOOPBACK).connect_unix_socket("/run/x.sock")


async def test_a_name_without_an_address_is_an_answer_too() -> None:
    async def nothing(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    answer = await HttpTransport(STRICT, resolver=nothing).post("https://h.example/", {}, BODY)
    assert answer.error == "the host's name could not be resolved"


async def test_a_resolver_that_hangs_is_given_up() -> None:
    async def hang(host: str, port: int) -> list[str]:
        await anyio.sleep_forever()
        raise AssertionError

    transport = HttpTransport(STRICT, resolver=hang, limit=timedelta(seconds=0.05))
    assert "no answer within" in (await transport.post("https://h.example/", {}, BODY)).error


async def test_the_systems_resolver_gives_plain_addresses() -> None:
    assert set(await resolve("localhost", 80)) <= {"127.0.0.1", "::1"}
