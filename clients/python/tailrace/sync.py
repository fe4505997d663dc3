"""The client for code without an event loop. Thread-safe; a stream belongs to one thread."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import grpc

from protos.tailrace.v1 import model_service_pb2, prediction_pb2, prediction_service_pb2
from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceStub
from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceStub
from tailrace.aio import BROKEN, CALL_S
from tailrace.channels import OPTIONS
from tailrace.errors import TailraceError, from_rpc
from tailrace.requests import Cursor, create_request, generation, predict_request, span


class Stream:
    """Like `AsyncStream`, blocking."""

    def __init__(self, stub: Any, cursor: Cursor) -> None:
        self._stub = stub
        self._cursor = cursor
        self._call: Any = None

    @property
    def prediction_id(self) -> str:
        """The prediction's id; empty until its `accepted` has been read."""
        return self._cursor.prediction_id

    @property
    def sequence(self) -> int:
        """Of the last event read."""
        return self._cursor.sequence

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> prediction_pb2.PredictionEvent:
        while not self._cursor.done:
            try:
                event = self._read()
            except TailraceError as error:
                self._drop()
                time.sleep(self._cursor.pause_after(error))
                continue
            self._cursor.take(event)
            return event
        self._drop()
        raise StopIteration

    def _read(self) -> prediction_pb2.PredictionEvent:
        if self._call is None:
            request = self._cursor.next_call()
            predict = isinstance(request, prediction_service_pb2.PredictRequest)
            self._call = self._stub.Predict(request) if predict else self._stub.StreamPrediction(request)
        try:
            event: prediction_pb2.PredictionEvent = next(self._call)
        except grpc.RpcError as error:
            raise from_rpc(error) from error
        except StopIteration:
            raise BROKEN from None
        return event

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()


class Client:
    """A service at `host:port` or `unix:/path`, without TLS. The methods are `AsyncClient`'s."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stub: Any = PredictionServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; its calls end."""
        self._channel.close()

    def predict(
        self,
        model: str,
        *,
        cancel_after: timedelta | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Stream:
        """Create a prediction and stream it, attached: leaving the stream cancels it."""
        request = predict_request(model, generation(**options), cancel_after, labels)
        return Stream(self._stub, Cursor(predict=request))

    def stream(self, prediction_id: str, *, after_sequence: int = 0) -> Stream:
        """Stream a prediction's events after one already seen, live to the end. Cancels nothing."""
        return Stream(self._stub, Cursor(prediction_id=prediction_id, sequence=after_sequence))

    def create(
        self,
        model: str,
        *,
        cancel_after: timedelta | None = None,
        labels: Mapping[str, str] | None = None,
        **options: Any,
    ) -> prediction_pb2.Prediction:
        """Create a prediction and return it at once. Nobody's going away cancels it."""
        request = create_request(model, generation(**options), cancel_after, labels)
        with _errors():
            answer: prediction_pb2.Prediction = self._stub.CreatePrediction(
                request, timeout=CALL_S, wait_for_ready=True
            )
        return answer

    def get(self, prediction_id: str, *, wait: timedelta = timedelta(0)) -> prediction_pb2.Prediction:
        """Return a prediction; with `wait` (at most 60 s) when it has ended or the wait is over."""
        request = prediction_service_pb2.GetPredictionRequest(id=prediction_id, wait=span(wait))
        with _errors():
            answer: prediction_pb2.Prediction = self._stub.GetPrediction(
                request, timeout=CALL_S + wait.total_seconds()
            )
        return answer

    def cancel(self, prediction_id: str) -> prediction_pb2.Prediction:
        """Cancel a prediction and return it ended; one that has ended comes back unchanged."""
        request = prediction_service_pb2.CancelPredictionRequest(id=prediction_id)
        with _errors():
            answer: prediction_pb2.Prediction = self._stub.CancelPrediction(request, timeout=CALL_S)
        return answer

    def models(self) -> model_service_pb2.ListModelsResponse:
        """Return the served models."""
        stub: Any = ModelServiceStub(self._channel)
        with _errors():
            answer: model_service_pb2.ListModelsResponse = stub.ListModels(
                model_service_pb2.ListModelsRequest(), timeout=CALL_S
            )
        return answer


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc(error) from error
