"""Owns one HTTP/1.1 connection of the load client: an answer with a length, then an event stream.

As cheap per event as Python allows: events are counted by a mark in the raw bytes, not parsed.
"""

from __future__ import annotations

import asyncio
import re
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import anyio

from benchmarks.load_plan import LoadFailed

_LENGTH: Final = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})")


@dataclass(frozen=True, slots=True)
class Marks:
    """What tells a dialect's events apart in raw bytes."""

    output: bytes
    """Once in every event with output text; at least as long as `end`, less one."""
    end: bytes
    """In the last event."""
    keep: bool = False
    """Whether all that was received is kept, for the counts in it."""
    piece: bytes = b""
    """One byte that is once in every token's text and nowhere in the framing; empty where none is."""


class Connection(asyncio.Protocol):
    """Made by `open`. One request at a time."""

    def __init__(self, host: str) -> None:
        self.events = 0
        self.pieces = 0
        """Tokens received, where pieces have a mark."""
        self.first_s = 0.0
        self.last_s = 0.0
        self.begun = anyio.Event()
        """Set at the first output text."""
        self.samples: array[float] | None = None
        """Where arrival times go while they are wanted."""
        self.received = b""
        self._host = host
        self._marks: Marks | None = None
        self._tail = b""
        self._over = anyio.Event()
        self._fault = ""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, base_url: str) -> Connection:
        """Connect to the server of `base_url`."""
        url = urlsplit(base_url)
        loop = asyncio.get_running_loop()
        host, port = url.hostname or "127.0.0.1", url.port or 80
        _, made = await loop.create_connection(lambda: cls(f"{host}:{port}"), host, port)
        return made

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request; wait for what comes of it with `answer` or `follow`."""
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        assert self._transport is not None
        self._transport.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def answer(self) -> bytes:
        """Return the body of an answer that names its length. Raises LoadFailed unless it is a 2xx."""
        await self._until_over()
        head, _, body = self.received.partition(b"\r\n\r\n")
        self.received, self._over = b"", anyio.Event()
        if not head.startswith(b"HTTP/1.1 2"):
            raise LoadFailed(f"{head.splitlines()[0].decode()}: {body[:500].decode('utf-8', 'replace')}")
        return body

    def expect(self, marks: Marks) -> None:
        """Take what comes next for an event stream; call before sending the request for it."""
        self._marks = marks

    async def follow(self) -> None:
        """Wait for the stream's last event. Raises LoadFailed if it breaks before."""
        await self._until_over()

    def close(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def _until_over(self) -> None:
        await self._over.wait()
        if self._fault:
            raise LoadFailed(self._fault)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (asyncio calls this)."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Note an end that comes too early (asyncio calls this)."""
        self._fail(f"the server closed the connection after {self.events} events ({error or 'no error'})")

    def data_received(self, data: bytes) -> None:
        """Count events (asyncio calls this)."""
        marks = self._marks
        if marks is None:
            self._take_answer(data)
            return
        now = time.monotonic()
        text = self._tail + data
        found = text.count(marks.output)
        if marks.piece:
            self.pieces += data.count(marks.piece)
        if found:
            if not self.events:
                self.first_s = now
                self.begun.set()
            self.events += found
            self.last_s = now
            if self.samples is not None:
                self.samples.append(now)
        elif not self.events:
            self._check_status(data)
        if marks.keep:
            self.received += data
        if marks.end in text:
            self._over.set()
        self._tail = text[1 - len(marks.output) :]  # too short to hold an output mark twice

    def _take_answer(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if end:
            length = _LENGTH.search(head)
            if length is None:
                self._fail("an answer without a length")
            elif len(body) >= int(length[1]):
                self._over.set()

    def _check_status(self, data: bytes) -> None:
        status = _STATUS.match(data)
        if status is not None and status[1] != b"200":
            self._fail(f"no stream: {data[:500].decode('utf-8', 'replace')}")

    def _fail(self, fault: str) -> None:
        if not self._over.is_set():
            self._fault = fault
            self._over.set()
            self.begun.set()
