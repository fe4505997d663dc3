"""`tailrace.v1.EdgeService`: all that one edge follows, as one stream.

Owns the board of a call: which predictions it follows and which have news. A prediction's news marks
it; the writer takes all that is marked as one message, so what an engine step brought to all readers
of an edge costs one write. While a write waits, marks only accumulate, and outputs are joined.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import anyio
import grpc

from protos.metadata import LINK
from protos.tailrace.v1 import edge_service_pb2 as epb
from protos.tailrace.v1.edge_service_pb2_grpc import EdgeServiceServicer
from service.ports.clock import Clock
from service.rpc.calls import OpenCalls
from service.rpc.convert import events_from
from service.runtime.following import Following
from service.runtime.predictions import Predictions

MAX_FOLLOWED = 10_000
"""Predictions that one call follows; more are refused."""
MAX_EVENTS = 4096
"""Events of one message; what is left stays marked. At 30 bytes a token, far below 1 MiB."""
MAX_BYTES = 1024 * 1024
"""Of texts in one message, about; a single event may be as large again."""


@dataclass(frozen=True, slots=True)
class _Followed:
    prediction_id: str
    following: Following
    unjoined: bool


class EdgeServicer(EdgeServiceServicer):
    """See the module and `edge_service.proto`."""

    def __init__(self, predictions: Predictions, calls: OpenCalls, clock: Clock) -> None:
        self._predictions = predictions
        self._calls = calls
        self._clock = clock

    # A coroutine that writes, where the generated base wants an async iterator: see style A6.
    async def Attach(  # type: ignore[override]
        self, requests: object, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream what is followed. The edge's going cancels no prediction."""
        board = Board(self._predictions)
        with self._calls.enter(lasting=True) as call:
            await context.send_initial_metadata(((LINK, "1"),))
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_read, context, board, tasks.cancel_scope)
                    while True:
                        await board.news.wait()
                        message = board.take()
                        if message.events or message.refused:
                            call.write_began = self._clock.monotonic()
                            await context.write(message)
                            call.write_began = math.inf
            finally:
                board.close()


async def _read(context: grpc.aio.ServicerContext, board: Board, everything: anyio.CancelScope) -> None:
    """Do what the edge says until it says no more, which ends the call."""
    while (request := await context.read()) is not grpc.aio.EOF:
        for number in request.unfollow:
            board.unfollow(number)
        for follow in request.follow:
            board.follow(follow)
    everything.cancel()


class Board:
    """What one call follows. Used on the event loop alone."""

    def __init__(self, predictions: Predictions) -> None:
        self._predictions = predictions
        self._followed: dict[int, _Followed] = {}
        self._marked: dict[int, None] = {}
        self._refused: list[int] = []
        self.news = asyncio.Event()
        """Set while `take` has something to give."""

    def follow(self, follow: epb.Follow) -> None:
        """Follow a prediction, or refuse."""
        number = follow.number

        def mark() -> None:
            self._marked[number] = None
            self.news.set()

        found = None
        if number not in self._followed and len(self._followed) < MAX_FOLLOWED and follow.after_sequence >= 0:
            found = self._predictions.follow(
                follow.prediction_id, follow.after_sequence, mark, owner=follow.owner
            )
        if found is None:
            self._refused.append(number)
            self.news.set()
        else:
            self._followed[number] = _Followed(follow.prediction_id, found, follow.unjoined)
            mark()

    def unfollow(self, number: int) -> None:
        """Stop following; an unknown number is fine, its end may have crossed."""
        followed = self._followed.pop(number, None)
        if followed is not None:
            self._marked.pop(number, None)
            followed.following.leave()

    def take(self) -> epb.AttachResponse:
        """Return what is new, in one message; `news` stays set if that was not all."""
        message = epb.AttachResponse(refused=self._refused)
        self._refused = []
        marked, self._marked = self._marked, {}
        size = 0
        for number in marked:
            if len(message.events) >= MAX_EVENTS or size >= MAX_BYTES:
                self._marked[number] = None
                continue
            followed = self._followed.get(number)
            if followed is None:
                continue
            following = followed.following
            entries = following.take()
            for event in events_from(followed.prediction_id, entries, unjoined=followed.unjoined):
                message.events.add(number=number, event=event)
                size += len(event.output.text)
            if following.has_more:
                self._marked[number] = None
            elif following.ended:
                self.unfollow(number)
            elif following.abandoned:
                self.unfollow(number)
                message.refused.append(number)
        if not self._marked:
            self.news.clear()
        return message

    def close(self) -> None:
        """Stop following everything."""
        for number in list(self._followed):
            self.unfollow(number)
