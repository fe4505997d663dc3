"""What Replicate's Go client (replicate-go 0.26) does on the wire, without Go: headers, polls, SSE reader.

Its reader ends a block at an empty line between line feeds only, knows no CR, and keeps the id of the
last block, none included, to resume after.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx

RECONNECTS = 5


@dataclass
class Block:
    """What the reader makes of one block."""

    event: str = ""
    data: str = ""
    id: str = ""


def read_block(raw: bytes) -> Block:
    """Read one block as the client does; a comment leaves an empty one."""
    block, data = Block(), []
    for line in raw.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name in (b"event", b"id"):
            setattr(block, name.decode(), value.decode())
    block.data = b"\n".join(data).decode()
    return block


@dataclass
class GoClient:
    """The client, on one connection pool; notes its requests."""

    http: httpx.AsyncClient
    requests: list[httpx.Request] = field(default_factory=list)

    async def call(self, method: str, url: str, body: object = None, **headers: str) -> httpx.Response:
        """Make a call with the client's headers: JSON as content type always, no Accept."""
        sent = {"authorization": "Bearer r8_go", "content-type": "application/json", **headers}
        request = self.http.build_request(
            method, url, json=body, headers={"user-agent": "replicate/go"} | sent
        )
        del request.headers["accept"]
        self.requests.append(request)
        return await self.http.send(request)

    async def stream(self, url: str, *, resumes: bool) -> list[Block]:
        """Read a stream to `done`: `StreamPredictionText` with `resumes`, the older `Stream` without."""
        blocks: list[Block] = []
        last_id = ""
        for _ in range(RECONNECTS):
            headers = {"last-event-id": last_id} if resumes and last_id else {}
            request = self.http.build_request(
                "GET", url, headers={"accept": "text/event-stream", "user-agent": "replicate/go", **headers}
            )
            self.requests.append(request)
            answer = await self.http.send(request, stream=True)
            assert answer.status_code == 200
            try:
                async for raw in _blocks(answer):
                    block = read_block(raw)
                    last_id = block.id
                    if not block.event:
                        continue
                    blocks.append(block)
                    if block.event == "done":
                        return blocks
            except httpx.TransportError:
                pass
            finally:
                await answer.aclose()
        raise AssertionError("never done")


async def _blocks(answer: httpx.Response) -> AsyncIterator[bytes]:
    buffer = b""
    async for chunk in answer.aiter_raw():
        buffer += chunk
        while b"\n\n" in buffer:
            block, _, buffer = buffer.partition(b"\n\n")
            yield block


@asynccontextmanager
async def cutting_proxy(url: str, cut_after: bytes) -> AsyncIterator[str]:
    """Give a base URL before that of `url` whose first connection breaks after it passed `cut_after` on."""
    target = urlsplit(url)
    cuts = 1

    async def serve(client: anyio.abc.SocketStream) -> None:
        nonlocal cuts
        async with client, await anyio.connect_tcp(str(target.hostname), int(target.port or 0)) as server:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pass_on, client, server)
                seen = b""
                try:
                    async for chunk in server:
                        seen += chunk
                        await client.send(chunk)
                        if cuts and cut_after in seen:
                            cuts -= 1
                            raw = client.extra(anyio.abc.SocketAttribute.raw_socket)
                            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # RST
                            break
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    pass
                tasks.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
            tasks.cancel_scope.cancel()


async def _pass_on(source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
    try:
        async for chunk in source:
            await target.send(chunk)
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
