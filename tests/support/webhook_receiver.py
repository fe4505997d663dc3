"""A webhook's receiver on loopback: it keeps what it got, and answers as the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

OK = b"HTTP/1.1 204 No Content\r\n\r\n"


@dataclass(frozen=True)
class Received:
    """One call."""

    target: str
    headers: dict[str, str]
    """Names in lower case."""
    raw: bytes
    at_s: float

    @property
    def body(self) -> Any:
        """The body, read."""
        return json.loads(self.raw)

    @property
    def id(self) -> str:
        """The `webhook-id`."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> str:
        """The event in the id."""
        return self.id.rsplit("_", 2)[1]


@dataclass
class Receiver:
    """What a test works with."""

    answers: list[bytes] = field(default_factory=list)
    """Whole answers for the next calls, in order; then OK."""
    delay_s: float = 0
    """Before each answer."""
    port: int = 0
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    bytes_read: int = 0
    scheme: str = "http"
    _news: anyio.Event = field(default_factory=anyio.Event)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.scheme}://127.0.0.1:{self.port}/hook?a=b"

    async def until(self, count: int, limit_s: float = 20) -> list[Received]:
        """Return all calls once there are so many."""
        with anyio.fail_after(limit_s):
            while len(self.received) < count:
                await self._news.wait()
        return self.received

    async def until_event(self, event: str, limit_s: float = 20) -> list[Received]:
        """Return all calls once one is for `event`."""
        with anyio.fail_after(limit_s):
            while not any(call.event == event for call in self.received):
                await self._news.wait()
        return self.received

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take the calls of one connection."""
        self.connections += 1
        try:
            head = await self._read(reader.readuntil(b"\r\n\r\n"))
            lines = head.decode("latin-1").split("\r\n")
            pairs = (line.partition(":") for line in lines[1:] if line)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            raw = await self._read(reader.readexactly(int(headers.get("content-length", "0"))))
            target = lines[0].split(" ")[1]
            self.received.append(Received(target, headers, raw, anyio.current_time()))
            answer = self.answers.pop(0) if self.answers else OK
            news, self._news = self._news, anyio.Event()
            news.set()
            await anyio.sleep(self.delay_s)
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _read(self, reading: Any) -> bytes:
        data: bytes = await reading
        self.bytes_read += len(data)
        return data


@asynccontextmanager
async def receiving(
    *answers: bytes, port: int = 0, delay_s: float = 0, **server: Any
) -> AsyncGenerator[Receiver, None]:
    """Run a receiver until the block ends; `server` is for `asyncio.start_server`."""
    receiver = Receiver(list(answers), delay_s, scheme="https" if server.get("ssl") else "http")
    listener = await asyncio.start_server(receiver.serve, "127.0.0.1", port, **server)
    receiver.port = listener.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        listener.close()


def status(code: int, *headers: str) -> bytes:
    """Return an answer without a body."""
    return "\r\n".join([f"HTTP/1.1 {code} Said", "content-length: 0", *headers, "", ""]).encode()
