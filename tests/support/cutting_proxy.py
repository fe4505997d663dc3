"""A TCP proxy that passes whole HTTP requests on and then, so many times, hangs up without an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.abc


@dataclass
class CuttingProxy:
    """What the proxy did and shall do."""

    upstream_port: int
    cuts: int
    """Answers still to be withheld."""

    port: int = 0
    requests: int = 0
    """Requests passed on so far."""

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, client: anyio.abc.SocketStream) -> None:
        """Serve one connection: one request, then close."""
        async with client:
            try:
                request = await _read_request(client)
            except anyio.EndOfStream:
                return
            self.requests += 1
            async with await anyio.connect_tcp("127.0.0.1", self.upstream_port) as upstream:
                await upstream.send(request)
                if self.cuts:
                    self.cuts -= 1
                    return
                try:
                    while True:
                        await client.send(await upstream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return


async def _read_request(client: anyio.abc.SocketStream) -> bytes:
    """Return one request, changed to close its connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await client.receive()
    head, _, body = data.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    length = next((int(x.split(b":")[1]) for x in lines if x.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        body += await client.receive()
    return b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body


@asynccontextmanager
async def cutting_proxy(upstream_port: int, cuts: int) -> AsyncGenerator[CuttingProxy, None]:
    """Serve until the block ends."""
    proxy = CuttingProxy(upstream_port, cuts)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        proxy.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, proxy.handle)
            yield proxy
            tasks.cancel_scope.cancel()
