"""Owns one prediction's events over the link, and the change to a call of their own where it fails."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

import anyio.lowlevel

from edge.upstream.events import Completed, PredictionEvent
from edge.upstream.link import Followed, Link
from edge.upstream.stream import RpcEventStream


class LinkedEventStream:
    """An `EventStream` that begins on the link; an async context manager."""

    __slots__ = ("_after", "_followed", "_id", "_link", "_own", "_own_call", "_owner", "_unjoined")

    def __init__(
        self,
        link: Link,
        prediction_id: str,
        after_sequence: int,
        owner: str,
        own_call: Callable[[int], RpcEventStream],
        *,
        unjoined: bool = False,
    ) -> None:
        """`owner` is for whom it reads; `own_call` opens a stream by a call of its own after a sequence."""
        self._link = link
        self._id = prediction_id
        self._owner = owner
        self._after = after_sequence
        self._own_call = own_call
        self._unjoined = unjoined
        self._followed: Followed | None = None
        self._own: RpcEventStream | None = None

    async def __aenter__(self) -> Self:
        self._followed = self._link.follow(self._id, self._after, self._owner, unjoined=self._unjoined)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._followed is not None:
            self._link.unfollow(self._followed)
        if self._own is not None:
            await self._own.__aexit__(kind, error, trace)

    async def receive(self) -> tuple[PredictionEvent, ...]:
        """Return all events that are ready; see `EventStream`."""
        if events := await self.receive_from_link():
            return events
        if self._own is None:
            self._own = self._own_call(self._after)
        return await self._own.receive()

    async def receive_from_link(self) -> tuple[PredictionEvent, ...]:
        """Return all events that are ready, none once they come by a call of its own.

        Cancelling it neither loses anything nor ends a call.
        """
        followed = self._followed
        if followed is None:
            return ()
        if followed.events:
            await anyio.lowlevel.checkpoint()
        while not followed.events and not followed.is_lost:
            await followed.news.wait()
        events = followed.take()
        if not events:
            self._followed = None
            return ()
        self._after = events[-1].sequence
        if isinstance(events[-1], Completed):
            self._link.forget(followed)
        return events
