"""Owns the link: one call that carries the events of all live predictions this edge streams.

A message a prediction and step costs both sides many times what the token in it does; over the link
all that one engine step brought comes as one message. The link is the fast way and nothing else: a
prediction it cannot serve, a reader that falls behind, a break of any kind is left to
`RpcEventStream`, which has retries, errors and flow control of its own.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import grpc

from edge.upstream import convert
from edge.upstream.calls import guarded
from edge.upstream.errors import UpstreamError
from edge.upstream.events import OutputText, PredictionEvent
from protos.metadata import LINK
from protos.tailrace.v1 import edge_service_pb2, edge_service_pb2_grpc

MAX_WAITING_EVENTS: Final = 1024
MAX_WAITING_CHARS: Final = 256 * 1024
"""What may wait for one reader; beyond it the reader goes on by itself, under flow control."""

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
"""Before the link is opened again."""


class Followed:
    """What the link has brought for one stream. Used on the event loop alone."""

    __slots__ = ("_chars", "_last_sequence", "events", "is_lost", "news", "number")

    def __init__(self, number: int, after_sequence: int) -> None:
        self.number = number
        self.events: list[PredictionEvent] = []
        self.news = asyncio.Event()
        self.is_lost = False
        """Nothing more comes over the link: go on after the last of `events` by other means."""
        self._last_sequence = after_sequence
        self._chars = 0

    def put(self, event: PredictionEvent, first_sequence: int) -> bool:
        """Add an event; False if the reader is too far behind, or something was left out."""
        if first_sequence != self._last_sequence + 1:
            return False
        self._last_sequence = event.sequence
        self.events.append(event)
        if isinstance(event, OutputText):
            self._chars += len(event.text)
        self.news.set()
        return self._chars <= MAX_WAITING_CHARS and len(self.events) <= MAX_WAITING_EVENTS

    def take(self) -> tuple[PredictionEvent, ...]:
        """Return what waits."""
        events = tuple(self.events)
        self.events.clear()
        self._chars = 0
        if not self.is_lost:
            self.news.clear()
        return events

    def lose(self) -> None:
        """Say that nothing more comes over the link."""
        self.is_lost = True
        self.news.set()


class Link:
    """One Attach call, opened again when it breaks; what was followed then is lost to it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = edge_service_pb2_grpc.EdgeServiceStub(channel)
        self._numbers = itertools.count(1)
        self._followed: dict[int, Followed] = {}
        self._orders = edge_service_pb2.AttachRequest()
        """What the service has yet to be told; bounded by the streams that are open."""
        self._ordered = asyncio.Event()
        self.up = asyncio.Event()
        """Set while the link is open."""

    def follow(
        self, prediction_id: str, after_sequence: int, owner: str, *, unjoined: bool = False
    ) -> Followed | None:
        """Ask for the events after `after_sequence`, each one log entry if `unjoined`; None while the
        link is down."""
        if not self.up.is_set():
            return None
        followed = Followed(next(self._numbers), after_sequence)
        self._followed[followed.number] = followed
        self._orders.follow.add(
            number=followed.number,
            prediction_id=prediction_id,
            after_sequence=after_sequence,
            owner=owner,
            unjoined=unjoined,
        )
        self._ordered.set()
        return followed

    def forget(self, followed: Followed) -> None:
        """Note that the end of a prediction has been taken: the service follows it no more."""
        self._followed.pop(followed.number, None)

    def unfollow(self, followed: Followed) -> None:
        """Ask for no more; harmless when it has ended or was lost."""
        if self._followed.pop(followed.number, None) is not None:
            self._orders.unfollow.append(followed.number)
            self._ordered.set()

    async def run(self) -> None:
        """Keep the link open until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            served = False
            try:
                served = await self._live()
            finally:
                self._lose_all()
            pause_s = FIRST_PAUSE_S if served else min(2 * pause_s, LONGEST_PAUSE_S)
            await anyio.sleep(pause_s)

    async def _live(self) -> bool:
        """Serve one call to its end; return whether it brought anything."""
        call = self._stub.Attach(wait_for_ready=True)
        served = False
        try:
            await guarded(call.write(self._orders))  # the call's headers travel with its first message
            if all(key != LINK for key, _ in await guarded(call.initial_metadata()) or ()):
                return False  # this service has no link
            self.up.set()
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, call, group.cancel_scope)
                served = await self._read(call)
                group.cancel_scope.cancel()
        except UpstreamError:
            pass  # no call at all: the service is away, or older than the link
        finally:
            call.cancel()
        return served

    async def _read(self, call: grpc.aio.StreamStreamCall) -> bool:
        """Deliver what comes until the call ends; return whether anything came."""
        served = False
        try:
            while (message := await guarded(call.read())) is not grpc.aio.EOF:
                self._deliver(message)
                served = True
        except UpstreamError:
            pass  # the streams go on by calls of their own, which say what is wrong
        return served

    async def _write(self, call: grpc.aio.StreamStreamCall, everything: anyio.CancelScope) -> None:
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            orders, self._orders = self._orders, edge_service_pb2.AttachRequest()
            try:
                await guarded(call.write(orders))
            except (UpstreamError, asyncio.InvalidStateError):  # the latter: the call has ended by now
                everything.cancel()
                return

    def _deliver(self, message: edge_service_pb2.AttachResponse) -> None:
        for item in message.events:
            followed = self._followed.get(item.number)
            if followed is None:
                continue
            event = convert.event_from_proto(item.event)
            if event is None or not followed.put(event, item.event.first_sequence):
                self.unfollow(followed)
                followed.lose()
        for number in message.refused:
            lost = self._followed.pop(number, None)
            if lost is not None:
                lost.lose()

    def _lose_all(self) -> None:
        self.up.clear()
        self._orders = edge_service_pb2.AttachRequest()
        self._ordered.clear()
        lost, self._followed = self._followed, {}
        for followed in lost.values():
            followed.lose()


@asynccontextmanager
async def open_link(channel: grpc.aio.Channel) -> AsyncIterator[Link]:
    """Keep a link over `channel` while the context lasts."""
    link = Link(channel)
    async with anyio.create_task_group() as group:
        group.start_soon(link.run)
        yield link
        group.cancel_scope.cancel()
