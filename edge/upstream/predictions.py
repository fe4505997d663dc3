"""Owns predictions over gRPC: the implementation of `UpstreamPredictions`."""

import uuid
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

import grpc

from edge.upstream import convert
from edge.upstream.attached import predict_attached
from edge.upstream.calls import CallPolicy, call
from edge.upstream.link import Link
from edge.upstream.linked_stream import LinkedEventStream
from edge.upstream.metadata import Caller
from edge.upstream.port import ChoiceStream
from edge.upstream.records import NewPrediction, PredictionPage, PredictionRecord
from edge.upstream.stream import RpcEventStream
from protos.metadata import REPLAYED
from protos.tailrace.v1 import prediction_pb2, prediction_service_pb2, prediction_service_pb2_grpc


class _CreateMethod:
    """The stub's CreatePrediction, with a memory for how its last answer came about."""

    def __init__(self, stub: prediction_service_pb2_grpc.PredictionServiceStub) -> None:
        self._stub = stub
        self._tries = 0
        self._last: grpc.aio.UnaryUnaryCall | None = None

    def __call__(
        self,
        request: prediction_service_pb2.CreatePredictionRequest,
        *,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        wait_for_ready: bool | None = None,
    ) -> Awaitable[prediction_pb2.Prediction]:
        self._tries += 1
        made: grpc.aio.UnaryUnaryCall = self._stub.CreatePrediction(
            request, timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready
        )
        self._last = made
        return cast(Awaitable[prediction_pb2.Prediction], made)

    async def is_replay(self) -> bool:
        """Return whether an earlier create had made the prediction; a repeat of our own is none."""
        if self._tries != 1 or self._last is None:
            return False
        trailer = await self._last.trailing_metadata()
        return any(key == REPLAYED for key, _ in trailer or ())


class RpcPredictions:
    """`UpstreamPredictions` with one RPC a prediction. Made in the loop that uses it."""

    def __init__(self, channel: grpc.aio.Channel, policy: CallPolicy, link: Link | None = None) -> None:
        """Streams go over `link` where there is one."""
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._policy = policy
        self._link = link

    async def create(self, new: NewPrediction, *, caller: Caller) -> PredictionRecord:
        """Create a prediction; a fresh request id, where there is none, makes our own retries harmless."""
        request_id = new.request_id or str(uuid.uuid4())
        request = convert.create_to_proto(new, request_id=request_id, owner=caller.owner)
        method = _CreateMethod(self._stub)
        record = convert.record_from_proto(await call(method, request, self._policy, caller=caller))
        return replace(record, replayed=await method.is_replay())

    def predict(
        self, news: Sequence[NewPrediction], *, caller: Caller
    ) -> AbstractAsyncContextManager[ChoiceStream]:
        """Create attached predictions and stream them, over the link if there is one."""
        return predict_attached(self._stub, news, self._policy, caller, self._link)

    async def get(
        self,
        prediction_id: str,
        *,
        caller: Caller,
        wait: timedelta = timedelta(0),
        omit_data: bool = False,
    ) -> PredictionRecord:
        """Return a prediction as it stands, or as it stands after `wait`."""
        request = prediction_service_pb2.GetPredictionRequest(
            id=prediction_id, omit_data=omit_data, owner=caller.acts_for
        )
        if wait:
            request.wait.CopyFrom(convert.duration(wait))
        answer = await call(self._stub.GetPrediction, request, self._policy, caller=caller, wait=wait)
        return convert.record_from_proto(answer)

    async def list(
        self,
        *,
        caller: Caller,
        page_size: int = 0,
        page_token: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> PredictionPage:
        """Return a page of predictions."""
        request = prediction_service_pb2.ListPredictionsRequest(
            page_size=page_size,
            page_token=page_token,
            created_after=None if created_after is None else convert.timestamp(created_after),
            created_before=None if created_before is None else convert.timestamp(created_before),
            owner=caller.acts_for,
        )
        return convert.page_from_proto(
            await call(self._stub.ListPredictions, request, self._policy, caller=caller)
        )

    async def cancel(self, prediction_id: str, *, caller: Caller) -> PredictionRecord:
        """Cancel a prediction."""
        request = prediction_service_pb2.CancelPredictionRequest(id=prediction_id, owner=caller.acts_for)
        return convert.record_from_proto(
            await call(self._stub.CancelPrediction, request, self._policy, caller=caller)
        )

    def open_stream(
        self, prediction_id: str, after_sequence: int, *, caller: Caller, unjoined: bool = False
    ) -> RpcEventStream | LinkedEventStream:
        """Stream a prediction's events, over the link if there is one, else by a call of its own."""

        def own_call(after: int) -> RpcEventStream:
            method = self._stub.StreamPrediction
            return RpcEventStream(method, prediction_id, after, self._policy, caller, unjoined=unjoined)

        if self._link is None:
            return own_call(after_sequence)
        owner = caller.acts_for
        return LinkedEventStream(
            self._link, prediction_id, after_sequence, owner, own_call, unjoined=unjoined
        )
