"""A proxy that serves an edge under a path prefix and strips it, as people run several things on one host.

One request a connection; bytes pass both ways as they come, so streams stream.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteReceiveStream, SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

_HEAD_BYTES = 64 * 1024
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead)


@asynccontextmanager
async def prefix_proxy(prefix: str, port: int) -> AsyncIterator[str]:
    """Serve what listens on `port` under `prefix` until the block ends; return the base of its URLs."""

    async def relay(client: SocketStream) -> None:
        async with client:
            with suppress(*_GONE):
                request = BufferedByteReceiveStream(client)  # may hold the body's beginning, too
                head = await request.receive_until(b"\r\n\r\n", _HEAD_BYTES)
                async with await anyio.connect_tcp("127.0.0.1", port) as server:
                    await server.send(_rewritten(head, prefix))
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(_pipe, request, server, tasks.cancel_scope)
                        await _pipe(server, client, tasks.cancel_scope)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, relay)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}{prefix}"
        tasks.cancel_scope.cancel()


def _rewritten(head: bytes, prefix: str) -> bytes:
    """Return the request's head without the prefix, saying which one it was."""
    request, *headers = head.split(b"\r\n")
    method, target, version = request.split(b" ")
    path = target.removeprefix(prefix.encode())
    assert path != target, "a request outside the prefix"
    kept = [line for line in headers if not line.lower().startswith(b"connection:")]
    added = [b"connection: close", b"x-forwarded-prefix: " + prefix.encode()]
    return b"\r\n".join([b" ".join([method, path or b"/", version]), *added, *kept, b"", b""])


async def _pipe(source: ByteReceiveStream, sink: SocketStream, both: anyio.CancelScope) -> None:
    with suppress(*_GONE):
        while True:
            await sink.send(await source.receive())
    both.cancel()
