"""The asyncio client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc

from protos.tailrace.v1 import model_service_pb2, prediction_pb2, prediction_service_pb2
from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceStub
from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceStub
from tailrace.channels import ChannelPool
from tailrace.errors import TailraceError, from_rpc
from tailrace.requests import Cursor, create_request, generation, predict_request, span

T = TypeVar("T")
CALL_S = 10.0
"""Deadline of a call that answers at once."""
BROKEN = TailraceError(grpc.StatusCode.UNAVAILABLE, "the stream ended without its `completed` event")


class AsyncStream:
    """The events of one prediction, across broken connections; an async context manager.

    Leaving the context ends the call. For a stream of `predict` that cancels the prediction; for one
    of `stream` it does not. Every stream that is read to its end closes with one `completed` event.
    """

    def __init__(self, pool: ChannelPool, cursor: Cursor) -> None:
        self._pool = pool
        self._cursor = cursor
        self._call: Any = None

    @property
    def prediction_id(self) -> str:
        """The prediction's id; empty until its `accepted` has been read."""
        return self._cursor.prediction_id

    @property
    def sequence(self) -> int:
        """Of the last event read: what another stream may resume after."""
        return self._cursor.sequence

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> prediction_pb2.PredictionEvent:
        while not self._cursor.done:
            try:
                event = await self._read()
            except TailraceError as error:
                self._drop()
                await asyncio.sleep(self._cursor.pause_after(error))
                continue
            self._cursor.take(event)
            return event
        self._drop()
        raise StopAsyncIteration

    async def _read(self) -> prediction_pb2.PredictionEvent:
        if self._call is None:
            stub = PredictionServiceStub(self._pool.get())
            request = self._cursor.next_call()
            if isinstance(request, prediction_service_pb2.PredictRequest):
                self._call = stub.Predict(request)
            else:
                self._call = stub.StreamPrediction(request)
        try:
            event = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        if event is grpc.aio.EOF:
            raise BROKEN
        return event  # type: ignore[no-any-return]  # grpc has no types

    def _drop(self) -> None:
        """End the call; grpc.aio goes on receiving otherwise (grpc/grpc#43462)."""
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class AsyncClient:
    """A service at `host:port` or `unix:/path`, without TLS; one may serve several event loops."""

    def __init__(self, address: str) -> None:
        self._pool = ChannelPool(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the running loop's channel."""
        await self._pool.close()

    def predict(
        self,
        model: str,
        *,
        cancel_after: timedelta | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> AsyncStream:
        """Create a prediction and stream it, attached: leaving the stream cancels it.

        `options` are those of `generation`.
        """
        request = predict_request(model, generation(**options), cancel_after, labels)
        return AsyncStream(self._pool, Cursor(predict=request))

    def stream(self, prediction_id: str, *, after_sequence: int = 0) -> AsyncStream:
        """Stream a prediction's events after one already seen, live to the end. Cancels nothing."""
        return AsyncStream(self._pool, Cursor(prediction_id=prediction_id, sequence=after_sequence))

    async def create(
        self,
        model: str,
        *,
        cancel_after: timedelta | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> prediction_pb2.Prediction:
        """Create a prediction and return it at once. Nobody's going away cancels it."""
        request = create_request(model, generation(**options), cancel_after, labels)
        stub = PredictionServiceStub(self._pool.get())
        return await _answer(stub.CreatePrediction(request, timeout=CALL_S, wait_for_ready=True))

    async def get(self, prediction_id: str, *, wait: timedelta = timedelta(0)) -> prediction_pb2.Prediction:
        """Return a prediction; with `wait` (at most 60 s) when it has ended or the wait is over."""
        request = prediction_service_pb2.GetPredictionRequest(id=prediction_id, wait=span(wait))
        stub = PredictionServiceStub(self._pool.get())
        return await _answer(stub.GetPrediction(request, timeout=CALL_S + wait.total_seconds()))

    async def cancel(self, prediction_id: str) -> prediction_pb2.Prediction:
        """Cancel a prediction and return it ended; one that has ended comes back unchanged."""
        request = prediction_service_pb2.CancelPredictionRequest(id=prediction_id)
        return await _answer(
            PredictionServiceStub(self._pool.get()).CancelPrediction(request, timeout=CALL_S)
        )

    async def models(self) -> model_service_pb2.ListModelsResponse:
        """Return the served models."""
        request = model_service_pb2.ListModelsRequest()
        return await _answer(ModelServiceStub(self._pool.get()).ListModels(request, timeout=CALL_S))


async def _answer(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc(error) from error
