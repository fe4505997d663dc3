"""A TCP relay whose connections can be cut, as a network does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.abc


class TcpRelay:
    """Passes bytes on both ways; after `cut` new connections are passed on again."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._open: set[anyio.CancelScope] = set()
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients reach it, as gRPC writes it."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Drop every connection there is."""
        for scope in self._open:
            scope.cancel()

    async def handle(self, client: anyio.abc.SocketStream) -> None:
        """Serve one connection."""
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                async with client, await anyio.connect_tcp(*self._upstream) as upstream:
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._pass, client, upstream, group.cancel_scope)
                        group.start_soon(self._pass, upstream, client, group.cancel_scope)
            except OSError:
                pass
            finally:
                self._open.discard(scope)

    @staticmethod
    async def _pass(
        source: anyio.abc.SocketStream, sink: anyio.abc.SocketStream, both: anyio.CancelScope
    ) -> None:
        try:
            while True:
                await sink.send(await source.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            both.cancel()


@asynccontextmanager
async def tcp_relay(upstream: str) -> AsyncGenerator[TcpRelay, None]:
    """Serve until the block ends."""
    relay = TcpRelay(upstream)
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        relay.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, relay.handle)
            yield relay
            tasks.cancel_scope.cancel()
