"""Owns the life of one SSE answer: first bytes, events, keep-alives, stalled and departed readers,
shutdown, the last words. What events look like is the dialect's (`SseRendering`).

Specification: WHATWG HTML, "Server-sent events"; the ASGI HTTP connection scope.

One task group holds all of it: the relay (this task), a watcher for the reader's going, and a
timekeeper for everything that depends on time. No event arms a timer: the relay notes when it sends,
the timekeeper looks. Nothing is queued here; the service's log is the buffer, so a reader that stops
reading is dropped after the send deadline and can resume.

The disconnect policy is the stream's: leaving its context ends our reading, and no prediction.
"""

import asyncio
import enum
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from edge.http.lifecycle import Lifecycle
from edge.protocol import sse
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Completed, PredictionEvent
from edge.upstream.port import EventStream

ABORT_EXTENSION: Final = "tailrace.abort"
"""ASGI extension of our server: `abort` in it drops the connection without sending what is buffered.
A peer that does not read can be got rid of in no other way."""

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

    closing_spread: timedelta = timedelta(seconds=3)
    """At shutdown streams end at random moments within it."""


class SseRendering(Protocol):
    """How a dialect writes a stream; one object a stream."""

    def render(self, event: PredictionEvent) -> bytes:
        """Return the frames of `event`; empty for one the dialect does not show."""
        ...

    def render_failure(self, error: UpstreamError) -> bytes:
        """Return the last frames of a stream that could not be mended."""
        ...

    def last_words(self) -> bytes:
        """Return what is sent when the hold after the end is over."""
        ...


class _End(enum.Enum):
    COMPLETED = enum.auto()
    BROKEN = enum.auto()


class _Wire:
    """The sending side of the answer, and what the timekeeper has to know of it."""

    __slots__ = ("_clock", "_send", "_started", "busy_since_s", "is_quiet", "sent_at_s")

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        self._send = send
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

    async def start(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
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

    async def comment(self) -> None:
        """Send a keep-alive; not noted as busy, since the timekeeper guards it itself."""
        await self._send({"type": "http.response.body", "body": sse.COMMENT, "more_body": True})
        self.sent_at_s = self._clock()


class SseResponse:
    """An ASGI application that answers one request with a prediction's events."""

    def __init__(
        self,
        source: AbstractAsyncContextManager[EventStream] | None,
        rendering: SseRendering,
        *,
        timing: SseTiming,
        lifecycle: Lifecycle,
        refuse: Callable[[UpstreamError], ASGIApp | None],
        headers: tuple[tuple[bytes, bytes], ...] = (),
        await_first: bool = True,
    ) -> None:
        """`source` is the stream, not yet entered; None for one that has nothing to say any more.

        `refuse` makes the answer to an error before the first byte; None from it means the same as
        a `source` of None. `await_first` is for streams whose first event comes at once.
        """
        self._source = source
        self._rendering = rendering
        self._timing = timing
        self._lifecycle = lifecycle
        self._refuse = refuse
        self._headers = (*sse.RESPONSE_HEADERS, *headers)
        self._await_first = await_first
        self._leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        wire = _Wire(send, asyncio.get_running_loop().time)  # anyio's own takes 2 µs
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
            await wire.start(self._headers)
        if end is _End.COMPLETED:
            wire.is_quiet = True
            await anyio.sleep(self._timing.hold_after_end.total_seconds())
        return None

    async def _relay(self, source: AbstractAsyncContextManager[EventStream], wire: _Wire) -> _End:
        """Send the events of `source`. Raises UpstreamError only before the first byte."""
        render = self._rendering.render
        async with source as stream:
            events: tuple[PredictionEvent, ...] = ()
            if self._await_first:
                with anyio.move_on_after(self._timing.first_event.total_seconds()):
                    events = await stream.receive()
            await wire.start(self._headers)
            frames = sse.COMMENT
            while True:
                frames += b"".join(map(render, events)) if len(events) != 1 else render(events[0])
                if frames:
                    await wire.send(frames)
                if events and isinstance(events[-1], Completed):
                    return _End.COMPLETED
                try:
                    events = await stream.receive()
                except UpstreamError as error:
                    if error.reason is Reason.CURSOR_EXPIRED:
                        return _End.COMPLETED
                    await wire.send(self._rendering.render_failure(error))
                    return _End.BROKEN
                frames = b""

    async def _close(self, wire: _Wire) -> None:
        """End the answer; on a broken stream or at shutdown readers come back by themselves."""
        if not wire.is_started:
            await wire.start(self._headers)
        if self._leaving:
            pause_ms = random.randint(SHORTEST_RETRY_MS, LONGEST_RETRY_MS)
            await wire.send(sse.encode_retry(timedelta(milliseconds=pause_ms)), more=False)
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
            await anyio.sleep(random.uniform(0, self._timing.closing_spread.total_seconds()))
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
                    await wire.comment()
                if limit.cancelled_caught:
                    return False


async def _cancel_on_disconnect(receive: Receive, everything: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    everything.cancel()


def _do_nothing() -> None:
    """Stand in for the abort extension on a server without it."""
