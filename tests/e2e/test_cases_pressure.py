"""Cases of public bug reports on readers that do not read, each named after its number."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from tests.support.pair import Api, Pair, numbered, script
from tests.support.processes import Edge, running_edge

READERS_EACH = 10
PIECE = "x" * 500
BIG = script(pieces=[PIECE], repeat=8000)
MIB = 1024


@pytest.fixture(scope="module")
async def hasty(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Edge]:
    """An edge that drops a stalled reader soon."""
    folder = tmp_path_factory.mktemp("hasty")
    async with running_edge(folder, pair.service.address, send_deadline="1s", keepalive="250ms") as edge:
        yield edge


@pytest.fixture
def api(pair: Pair, hasty: Edge) -> Api:
    return Api(hasty, pair.http)


def rss_kib(pid: int) -> int:
    """Return a process's resident memory."""
    (line,) = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1])


def sockets(pid: int) -> int:
    """Return how many files a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def stalled(edge: Edge, made: dict[str, Any]) -> socket.socket:
    """Return a connection that has asked for a stream and reads no further than its first bytes."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await anyio.to_thread.run_sync(reader.connect, ("127.0.0.1", edge.port))
    path = urlsplit(made["urls"]["stream"]).path
    reader.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    reader.setblocking(False)
    await anyio.wait_readable(reader)
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


async def test_b181_readers_that_do_not_read_cost_little_slow_nobody_and_can_resume(
    hasty: Edge, api: Api
) -> None:
    with anyio.fail_after(60):
        whole = await api.create(BIG, {"Prefer": "wait"})
        another = await api.create(BIG, {"Prefer": "wait"})
        await api.read(whole)
        base_files, base_kib = sockets(hasty.pid), rss_kib(hasty.pid)
        readers = [await stalled(hasty, made) for made in (whole, another) for _ in range(READERS_EACH)]
        prompt, text = numbered(200)
        assert (await api.read(await api.create(prompt))).text == text
        assert (await api.read(whole)).text == PIECE * 8000
        grown_kib = rss_kib(hasty.pid) - base_kib
        while sockets(hasty.pid) > base_files:  # each is dropped
            await anyio.sleep(0.05)
        for reader in readers:
            reader.close()
    assert grown_kib < 2 * READERS_EACH * MIB, "less than 1 MiB a reader"


async def _reset_readers(hasty: Edge, made: dict[str, Any], base_files: int) -> None:
    """Let some readers stop reading, reset their connections, and wait until nothing of them is left.

    A reader's place at the service comes back, too: it has 16 for one prediction.
    """
    readers = [await stalled(hasty, made) for _ in range(READERS_EACH)]
    for reader in readers:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader.close()
    while sockets(hasty.pid) > base_files:
        await anyio.sleep(0.02)


async def test_b182_resets_of_full_connections_leave_nothing_behind(hasty: Edge, api: Api) -> None:
    with anyio.fail_after(60):
        made = await api.create(BIG, {"Prefer": "wait"})
        await api.read(made)
        base_files = sockets(hasty.pid)
        await _reset_readers(hasty, made, base_files)  # what the first ones cost is kept for the next ones
        base_kib = rss_kib(hasty.pid)
        for _ in range(4):
            await _reset_readers(hasty, made, base_files)
        assert (await api.read(made)).text == PIECE * 8000
        assert rss_kib(hasty.pid) - base_kib < READERS_EACH * MIB
    assert "Traceback" not in hasty.log
