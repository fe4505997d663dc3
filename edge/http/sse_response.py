"""Owns the life of one SSE answer: first bytes, events, keep-alives, stalled and departed readers,
shutdown, the last words. What events look like is the dialect's (`SseRendering`).

Specification: WHATWG HTML, "Server-sent events"; the ASGI HTTP connection scope.

One task group holds all of it: the relay (this task), a watcher for the reader's going, and a
timekeeper for everything that depends on time. No event arms a timer: the relay notes when it sends,
the timekeeper looks. Nothing is queued here; the service's log is the buffer, so a reader that stops
reading is dropped after the send deadline and can resume.

The disconnect policy is the stream's: leaving its context ends our reading, and of attached
predictions the prediction too.
"""

import asyncio
import enum
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.http.lifecycle import Lifecycle
from edge.protocol import sse
from edge.upstream.errors import Reason, UpstreamError

ABORT_EXTENSION: Final = "tailrace.abort"
"""ASGI extension of our server: `abort` in it drops the connection without sending what is buffered.
A peer that does not read can be got rid of in no other way."""

Headers = tuple[tuple[bytes, bytes], ...]
Refuse = Callable[[UpstreamError], ASGIApp | None]
"""Makes the answer to an error before the first byte."""

SHORTEST_RETRY_MS: Final = 100
LONGEST_RETRY_MS: Final = 1500
"""Bounds of the `retry` told at shutdown, so that readers do not all come back at once."""


@dataclass(frozen=True, slots=True)
class SseTiming:
    """Durations of an SSE answer."""

    keepalive: timedelta = timedelta(seconds=15)
    """Longest silence on a live stream."""

    send_deadline: timedelta = timedelta(seconds=20)
    """How long a reader may take nothing before it is dropped."""

    hold_after_end: timedelta = timedelta(seconds=30)
    """How long the connection stays open after the last event, for the reader to close first."""

    first_event: timedelta = timedelta(seconds=1)
    """How long the status line waits for the first event, so that an early error gets a status."""

    closing_grace: timedelta = timedelta(0)
    """At shutdown, how long streams just go on: for those that no reader can resume."""

    closing_spread: timedelta = timedelta(seconds=3)
    """After the grace streams end at random moments within it."""


class FirstBytes(enum.Enum):
    """What the status line waits for, at most for `SseTiming.first_event`."""

    AT_ONCE = enum.auto()
    FIRST_EVENT = enum.auto()
    """For streams whose first event comes at once."""
    FIRST_FRAME = enum.auto()
    """So that a prediction that fails early can still be answered with a status."""


_EventIn = TypeVar("_EventIn", contravariant=True)
_EventOut = TypeVar("_EventOut", covariant=True)
_Event = TypeVar("_Event")


class EventSource(Protocol[_EventOut]):
    """Where events come from: see `edge.upstream.port`."""

    async def receive(self) -> Sequence[_EventOut]:
        """Return all events that are ready, at least one. Cancelling it loses nothing."""
        ...


class SseRendering(Protocol[_EventIn]):
    """How a dialect writes a stream; one object a stream."""

    @property
    def ended(self) -> bool:
        """Whether the last event has been rendered."""
        ...

    def render(self, event: _EventIn) -> bytes:
        """Return the frames of `event`; empty for one the dialect does not show.

        Raises UpstreamError for an event that ends the stream as an error of the request: it is
        answered with a status if nothing has been sent, and by `render_failure` later.
        """
        ...

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the last frames of a stream that could not be mended."""
        ...

    def render_leaving(self, pause: timedelta) -> bytes:
        """Return the last frames at shutdown; readers that can should come back after `pause`."""
        ...

    def last_words(self) -> bytes:
        """Return what is sent when the hold after the end is over."""
        ...


class _End(enum.Enum):
    COMPLETED = enum.auto()
    BROKEN = enum.auto()


class _Wire:
    """The sending side of the answer, and what the timekeeper has to know of it."""

    __slots__ = ("_clock", "_keepalive", "_send", "_started", "busy_since_s", "is_quiet", "sent_at_s")

    def __init__(self, send: Send, clock: Callable[[], float], keepalive: bytes) -> None:
        self._send = send
        self._keepalive = keepalive
        self._clock = clock
        self._started = False
        self.sent_at_s = clock()
        self.busy_since_s: float | None = None
        self.is_quiet = False
        """No keep-alives: nothing more will be said but last words."""

    @property
    def is_started(self) -> bool:
        """Whether status and headers are out."""
        return self._started

    async def start(self, headers: Headers) -> None:
        """Send status and headers."""
        self._started = True
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def send(self, frames: bytes, *, more: bool = True) -> None:
        """Send `frames`, waiting while the reader does not take what was sent before."""
        self.sent_at_s = self.busy_since_s = self._clock()
        try:
            await self._send({"type": "http.response.body", "body": frames, "more_body": more})
        finally:
            self.busy_since_s = None

    async def keep_alive(self) -> None:
        """Send a keep-alive; not noted as busy, since the timekeeper guards it itself."""
        await self._send({"type": "http.response.body", "body": self._keepalive, "more_body": True})
        self.sent_at_s = self._clock()


class SseResponse(Generic[_Event]):
    """An ASGI application that answers one request with a prediction's events."""

    def __init__(
        self,
        source: AbstractAsyncContextManager[EventSource[_Event]] | None,
        rendering: SseRendering[_Event],
        *,
        timing: SseTiming,
        lifecycle: Lifecycle,
        refuse: Refuse,
        headers: Headers | Callable[[], Headers] = (),
        first_bytes: FirstBytes = FirstBytes.FIRST_EVENT,
        keepalive: bytes = sse.COMMENT,
    ) -> None:
        """`source` is the stream, not yet entered; None for one that has nothing to say any more.

        `refuse` makes the answer to an error before the first byte; None from it means the same as
        a `source` of None. A function of `headers` is asked when the status line goes out.
        """
        self._source = source
        self._rendering = rendering
        self._timing = timing
        self._lifecycle = lifecycle
        self._refuse = refuse
        self._extra_headers = headers
        self._first_bytes = first_bytes
        self._keepalive = keepalive
        self._leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = _Wire(send, asyncio.get_running_loop().time, self._keepalive)  # anyio's own takes 2 µs
        extension = scope.get("extensions", {}).get(ABORT_EXTENSION, {})
        abort: Callable[[], None] = extension.get("abort", _do_nothing)
        refusal: ASGIApp | None = None
        async with anyio.create_task_group() as group:
            reading = anyio.CancelScope()
            group.start_soon(_cancel_on_disconnect, receive, group.cancel_scope)
            group.start_soon(self._keep_time, wire, reading, group.cancel_scope, abort)
            with reading:
                refusal = await self._speak(wire)
            if refusal is None:
                await self._close(wire)
            group.cancel_scope.cancel()
        if refusal is not None:
            await refusal(scope, receive, send)

    async def _speak(self, wire: _Wire) -> ASGIApp | None:
        """Send everything but the last words; return another answer if there is nothing to stream."""
        end = _End.COMPLETED
        if self._source is not None:
            try:
                end = await self._relay(self._source, wire)
            except UpstreamError as error:
                refusal = self._refuse(error)
                if refusal is not None:
                    return refusal
        if not wire.is_started:
            await wire.start(self._headers())
        if end is _End.COMPLETED:
            wire.is_quiet = True
            await anyio.sleep(self._timing.hold_after_end.total_seconds())
        return None

    async def _relay(self, source: AbstractAsyncContextManager[EventSource[_Event]], wire: _Wire) -> _End:
        """Send the events of `source`. Raises UpstreamError only before the first byte."""
        async with source as stream:
            frames = b""
            error: UpstreamError | None = None
            if self._first_bytes is not FirstBytes.AT_ONCE:
                with anyio.move_on_after(self._timing.first_event.total_seconds()):
                    while not frames and not self._rendering.ended:
                        frames, error = self._rendered(await stream.receive())
                        if error is not None and not frames:
                            raise error
                        if error is not None or self._first_bytes is FirstBytes.FIRST_EVENT:
                            break
            await wire.start(self._headers())
            frames = sse.COMMENT + frames
            while True:
                if error is not None:
                    await wire.send(frames + self._rendering.render_failure(error))
                    return _End.BROKEN
                if frames:
                    await wire.send(frames)
                if self._rendering.ended:
                    return _End.COMPLETED
                try:
                    events = await stream.receive()
                except UpstreamError as broken:
                    if broken.reason is Reason.CURSOR_EXPIRED:
                        return _End.COMPLETED
                    frames, error = b"", broken
                else:
                    frames, error = self._rendered(events)

    def _rendered(self, events: Sequence[_Event]) -> tuple[bytes, UpstreamError | None]:
        """Return the frames of `events`, and the error that cuts them short."""
        if len(events) == 1:
            try:
                return self._rendering.render(events[0]), None
            except UpstreamError as error:
                return b"", error
        frames: list[bytes] = []
        for event in events:
            try:
                frames.append(self._rendering.render(event))
            except UpstreamError as error:
                return b"".join(frames), error
        return b"".join(frames), None

    def _headers(self) -> Headers:
        extra = self._extra_headers
        return (*sse.RESPONSE_HEADERS, *(extra() if callable(extra) else extra))

    async def _close(self, wire: _Wire) -> None:
        """End the answer; on a broken stream or at shutdown readers come back by themselves."""
        if not wire.is_started:
            await wire.start(self._headers())
        if self._leaving:
            pause_ms = random.randint(SHORTEST_RETRY_MS, LONGEST_RETRY_MS)
            await wire.send(self._rendering.render_leaving(timedelta(milliseconds=pause_ms)), more=False)
        else:
            await wire.send(self._rendering.last_words() if wire.is_quiet else b"", more=False)

    async def _keep_time(
        self,
        wire: _Wire,
        reading: anyio.CancelScope,
        everything: anyio.CancelScope,
        abort: Callable[[], None],
    ) -> None:
        """Send keep-alives, drop a stalled reader, and end the stream when the process closes."""
        if await self._watch(wire):
            spread_s = random.uniform(0, self._timing.closing_spread.total_seconds())
            await anyio.sleep(self._timing.closing_grace.total_seconds() + spread_s)
            self._leaving = True
            reading.cancel()
            await anyio.sleep(self._timing.send_deadline.total_seconds())
        abort()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()  # lets the server see that the connection is gone
        everything.cancel()

    async def _watch(self, wire: _Wire) -> bool:
        """Return True when the process closes, False when the reader has stalled."""
        keepalive_s = self._timing.keepalive.total_seconds()
        deadline_s = self._timing.send_deadline.total_seconds()
        while True:
            now_s = anyio.current_time()
            due_s = now_s + min(keepalive_s, deadline_s)
            if wire.busy_since_s is not None:
                due_s = min(due_s, wire.busy_since_s + deadline_s)
            elif wire.is_started and not wire.is_quiet:
                due_s = min(due_s, wire.sent_at_s + keepalive_s)
            with anyio.CancelScope(deadline=due_s):
                await self._lifecycle.wait_closing()
                return True
            now_s = anyio.current_time()
            if wire.busy_since_s is not None:
                if now_s >= wire.busy_since_s + deadline_s:
                    return False
            elif wire.is_started and not wire.is_quiet and now_s >= wire.sent_at_s + keepalive_s:
                with anyio.move_on_after(deadline_s) as limit:
                    await wire.keep_alive()
                if limit.cancelled_caught:
                    return False


async def _cancel_on_disconnect(receive: Receive, everything: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    everything.cancel()


def _do_nothing() -> None:
    """Stand in for the abort extension on a server without it."""
