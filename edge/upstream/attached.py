"""Owns attached predictions: made and read together, and cancelled when their reader leaves.

`Predict` makes each one, so that the service sees its caller go in every phase. Where there is a link
that call only holds the prediction, and its events come over the link. When what brings the events
breaks, `StreamPrediction` with `attach` goes on as the same caller; the service waits for that.

A task a prediction reads a call that brings events, since a read of grpc.aio that is cancelled takes
the call with it, and the prediction then with the call. What they read waits here, at most `MAX_WAITING`
events: a task that finds it full stops reading, and the service's log is the buffer.
"""

import uuid
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from edge.upstream import convert
from edge.upstream.calls import CallPolicy, guarded
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, Completed
from edge.upstream.link import Link
from edge.upstream.linked_stream import LinkedEventStream
from edge.upstream.metadata import Caller
from edge.upstream.port import Choice, ChoiceStream, EventStream
from edge.upstream.records import NewPrediction
from edge.upstream.retry import RetryBudget
from edge.upstream.stream import ATTACHED_DEADLINE, RpcEventStream, StreamCall, StreamMethod
from protos.tailrace.v1 import prediction_service_pb2

MAX_WAITING: Final = 64


class PredictMethod(Protocol):
    """The stub's Predict."""

    def __call__(
        self,
        request: prediction_service_pb2.PredictRequest,
        *,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        wait_for_ready: bool | None = None,
    ) -> StreamCall: ...


class AttachedStub(Protocol):
    """What we use of the service's stub."""

    @property
    def Predict(self) -> PredictMethod: ...

    @property
    def StreamPrediction(self) -> StreamMethod: ...


@dataclass(frozen=True, slots=True)
class _Begun:
    """A prediction that has been made."""

    accepted: Accepted
    stream: RpcEventStream | LinkedEventStream


@asynccontextmanager
async def predict_attached(
    stub: AttachedStub,
    news: Sequence[NewPrediction],
    policy: CallPolicy,
    caller: Caller,
    link: Link | None = None,
) -> AsyncGenerator[ChoiceStream, None]:
    """Give the merged stream of `news`; see `UpstreamPredictions.predict`."""
    failure: UpstreamError | None = None
    async with AsyncExitStack() as streams:
        begun = [await streams.enter_async_context(_begin(stub, new, policy, caller, link)) for new in news]
        async with anyio.create_task_group() as group:
            try:
                if len(begun) == 1 and isinstance(begun[0].stream, LinkedEventStream):
                    yield _Lone(begun[0].accepted, begun[0].stream, group)
                else:
                    yield _Merged(begun, group)
            except UpstreamError as error:  # a task group would wrap it
                failure = error
            group.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def _begin(
    stub: AttachedStub, new: NewPrediction, policy: CallPolicy, caller: Caller, link: Link | None
) -> AsyncGenerator[_Begun, None]:
    """Make one prediction and give what reads it on; leaving ends its call."""
    linked = link if link is not None and link.up.is_set() else None
    accepted, call = await _predict(stub.Predict, new, policy, caller, accepted_only=linked is not None)

    def own_call(after: int, open_call: StreamCall | None = None) -> RpcEventStream:
        method, identity = stub.StreamPrediction, accepted.prediction_id
        return RpcEventStream(method, identity, after, policy, caller, attach=True, call=open_call)

    if linked is None:
        async with own_call(accepted.sequence, call) as own:
            yield _Begun(accepted, own)
        return
    try:
        async with LinkedEventStream(
            linked, accepted.prediction_id, accepted.sequence, caller.acts_for, own_call
        ) as stream:
            yield _Begun(accepted, stream)
    finally:
        call.cancel()


async def _predict(
    method: PredictMethod,
    new: NewPrediction,
    policy: CallPolicy,
    caller: Caller,
    *,
    accepted_only: bool,
) -> tuple[Accepted, StreamCall]:
    """Return the first event and the call that goes on; the request id makes repeats harmless."""
    request = convert.predict_to_proto(
        new, request_id=str(uuid.uuid4()), owner=caller.owner, accepted_only=accepted_only
    )
    budget = RetryBudget(policy.unary_retry)
    timeout_s = ATTACHED_DEADLINE.total_seconds()
    while True:
        call = method(request, timeout=timeout_s, metadata=caller.metadata(), wait_for_ready=True)
        try:
            return await _first_event(call, policy), call
        except UpstreamError as error:
            call.cancel()
            if not error.is_passing:
                raise
            await budget.pause(error)
        except BaseException:
            call.cancel()
            raise


async def _first_event(call: StreamCall, policy: CallPolicy) -> Accepted:
    with anyio.move_on_after(policy.deadline.total_seconds()):
        message = await guarded(call.read())
        if not hasattr(message, "WhichOneof"):  # grpc.aio.EOF
            raise UpstreamError(Reason.UNREACHABLE)
        event = convert.event_from_proto(message)
        if not isinstance(event, Accepted):
            raise UpstreamError(Reason.INTERNAL)
        return event
    raise UpstreamError(Reason.DEADLINE_EXCEEDED)


class _Lone:
    """A `ChoiceStream` of one prediction: as it is while it comes over the link, then as `_Merged`."""

    __slots__ = ("_fresh", "_group", "_pumped", "_stream", "accepted")

    def __init__(self, accepted: Accepted, stream: LinkedEventStream, group: anyio.abc.TaskGroup) -> None:
        self.accepted = (accepted,)
        self._stream = stream
        self._group = group
        self._fresh = True
        self._pumped: _Merged | None = None

    async def receive(self) -> tuple[Choice, ...]:
        if self._fresh:
            self._fresh = False
            return (Choice(0, self.accepted[0]),)
        if self._pumped is None:
            if events := await self._stream.receive_from_link():
                return tuple([Choice(0, event) for event in events])
            begun = _Begun(self.accepted[0], self._stream)
            self._pumped = _Merged([begun], self._group, is_fresh=False)
        return await self._pumped.receive()


class _Merged:
    """A `ChoiceStream` that a task a prediction fills."""

    __slots__ = ("_failure", "_news", "_room", "_waiting", "accepted")

    def __init__(self, begun: Sequence[_Begun], group: anyio.abc.TaskGroup, *, is_fresh: bool = True) -> None:
        """`is_fresh`: whether the first events have yet to be given."""
        self.accepted = tuple(one.accepted for one in begun)
        self._waiting: deque[Choice] = deque()
        if is_fresh:
            self._waiting.extend(Choice(i, event) for i, event in enumerate(self.accepted))
        self._failure: UpstreamError | None = None
        self._news: anyio.Event | None = None
        self._room: anyio.Event | None = None
        for index, one in enumerate(begun):
            group.start_soon(self._pump, index, one.stream)

    async def receive(self) -> tuple[Choice, ...]:
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._news = anyio.Event()
            await self._news.wait()
        await anyio.lowlevel.checkpoint_if_cancelled()
        ready = tuple(self._waiting)
        self._waiting.clear()
        if self._room is not None:
            self._room.set()
            self._room = None
        await anyio.lowlevel.cancel_shielded_checkpoint()
        return ready

    async def _pump(self, index: int, stream: EventStream) -> None:
        """Read one prediction to its end."""
        try:
            while True:
                events = await stream.receive()
                while len(self._waiting) >= MAX_WAITING:
                    if self._room is None:
                        self._room = anyio.Event()
                    await self._room.wait()
                self._waiting.extend(Choice(index, event) for event in events)
                self._wake()
                if isinstance(events[-1], Completed):
                    return
        except UpstreamError as error:
            self._failure = error
            self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None
