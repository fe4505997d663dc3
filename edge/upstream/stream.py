"""Owns the reading of one prediction's events over gRPC, across breaks of the connection.

`StreamPrediction` is asked again after the last event seen whenever its stream breaks: on a passing
fault, and on an end without `completed`, which means that the stream broke, not the prediction.
"""

from datetime import timedelta
from types import TracebackType
from typing import Final, Protocol, Self

import grpc

from edge.upstream import convert
from edge.upstream.calls import CallPolicy, guarded
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import PredictionEvent
from edge.upstream.metadata import Caller
from edge.upstream.retry import RetryBudget
from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2

CALL_DEADLINE: Final = timedelta(minutes=15)
"""Of one call; a longer stream goes on in another one. It frees the service of readers whose end
got lost."""

ATTACHED_DEADLINE: Final = timedelta(hours=25)
"""Of an attached call: its end cancels the prediction, so it lies beyond the longest one (24 h)."""


class StreamCall(Protocol):
    """What we use of grpc.aio's unary-stream call."""

    async def read(self) -> prediction_pb2.PredictionEvent: ...

    def cancel(self) -> bool: ...


class StreamMethod(Protocol):
    """The stub's StreamPrediction."""

    def __call__(
        self,
        request: prediction_service_pb2.StreamPredictionRequest,
        *,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
    ) -> StreamCall: ...


class RpcEventStream:
    """An `EventStream` over calls of StreamPrediction; an async context manager."""

    __slots__ = (
        "_attach",
        "_budget",
        "_call",
        "_id",
        "_last_sequence",
        "_metadata",
        "_method",
        "_owner",
        "_reopening",
        "_unjoined",
    )

    def __init__(
        self,
        method: StreamMethod,
        prediction_id: str,
        after_sequence: int,
        policy: CallPolicy,
        caller: Caller,
        *,
        attach: bool = False,
        unjoined: bool = False,
        call: StreamCall | None = None,
    ) -> None:
        """`attach` makes every call the prediction's caller; `unjoined` gives each log entry an event of
        its own; `call` is one that is open already."""
        self._attach = attach
        self._method = method
        self._id = prediction_id
        self._last_sequence = after_sequence
        self._metadata = caller.metadata()
        self._owner = caller.acts_for
        self._budget = RetryBudget(policy.stream_retry)
        self._unjoined = unjoined
        self._call = call
        self._reopening = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_call()

    async def receive(self) -> tuple[PredictionEvent, ...]:
        """Return the next event; see `EventStream`."""
        while True:
            try:
                message = await guarded((self._call or self._open_call()).read())
                event = self._take(message)
            except UpstreamError as error:
                self._drop_call()
                if not self._is_mendable(error):
                    raise
                await self._budget.pause(error)
                self._reopening = True
                continue
            if event is not None:
                return (event,)

    def _take(self, message: prediction_pb2.PredictionEvent) -> PredictionEvent | None:
        """Return the event of what was read; None for one of a kind we do not know."""
        if message is grpc.aio.EOF:
            raise UpstreamError(Reason.UNREACHABLE)
        sequence = message.sequence
        if message.first_sequence != self._last_sequence + 1 or sequence <= self._last_sequence:
            raise UpstreamError(Reason.INTERNAL)  # a hole or a repeat: never shown as if it were text
        event = convert.event_from_proto(message)
        self._last_sequence = sequence
        if self._reopening:
            self._reopening = False
            self._budget.progress()
        return event

    def _open_call(self) -> StreamCall:
        request = prediction_service_pb2.StreamPredictionRequest(
            id=self._id,
            after_sequence=self._last_sequence,
            owner=self._owner,
            attach=self._attach,
            unjoined=self._unjoined,
        )
        deadline = ATTACHED_DEADLINE if self._attach else CALL_DEADLINE
        self._call = self._method(request, timeout=deadline.total_seconds(), metadata=self._metadata)
        return self._call

    def _is_mendable(self, error: UpstreamError) -> bool:
        if error.reason is Reason.DEADLINE_EXCEEDED:
            return True
        if error.reason is Reason.TOO_MANY_READERS:
            return self._reopening  # our own broken call may still count as a reader
        return error.is_passing

    def _drop_call(self) -> None:
        """End the current call. Without it the service would go on sending (grpc/grpc#43462)."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
