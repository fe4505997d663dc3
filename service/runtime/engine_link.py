"""Our end of the socket pair to an engine's process: frames in, frames out.

One frame arrives per engine step: this is the hot path, so it is a plain asyncio protocol without a
stream or a task in between. Bounds: out, the jobs of the slots, one cancel for each, and the counts
under way; in, `pause` stops reading, and what then waits is the engine's process's to bound.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from service.engine_frames import Command, FrameError, FrameSplitter, Reply, pack, unpack_reply


class EngineLink(asyncio.Protocol):
    """Made by `open`; used from the event loop's thread alone."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._on_reply: Callable[[Reply], None] | None = None
        self._on_end: Callable[[str], None] | None = None
        self._lost = False
        self._paused = False

    @classmethod
    async def open(cls, sock: socket.socket) -> EngineLink:
        """Take over a connected socket, closed by `close`."""
        try:
            loop = asyncio.get_running_loop()
            return (await loop.create_unix_connection(cls, sock=sock))[1]
        except BaseException:
            sock.close()
            raise

    @property
    def paused(self) -> bool:
        """Whether nothing is read at present."""
        return self._paused

    @property
    def backlog_bytes(self) -> int:
        """What has been sent and the other end has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def attach(self, on_reply: Callable[[Reply], None], on_end: Callable[[str], None]) -> None:
        """Give each reply to `on_reply`; call `on_end` once: with "" at the end, with a cause for garbage."""
        self._on_reply, self._on_end = on_reply, on_end
        if self._lost:
            on_end("")

    def detach(self) -> None:
        """Give nothing more to anyone."""
        self._on_reply = self._on_end = None

    def send(self, command: Command) -> None:
        """Write a frame without waiting; none after the end. Raises `FrameError`."""
        frame = pack(command)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame)

    def pause(self) -> None:
        """Read nothing until `resume`."""
        if self._transport is not None and not self._paused and not self._lost:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None and self._paused and not self._lost:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Decode what is complete (asyncio calls this)."""
        try:
            for payload in self._splitter.feed(data):
                reply = unpack_reply(payload)
                if self._on_reply is not None:
                    self._on_reply(reply)
        except FrameError as error:
            self._end(f"the engine's process sent garbage: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Note the end (asyncio calls this)."""
        self._lost = True
        self._end("")

    def _end(self, cause: str) -> None:
        on_end = self._on_end
        self.detach()
        if on_end is not None:
            on_end(cause)
