"""Owns predictions over gRPC: the implementation of `UpstreamPredictions`."""

import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta

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
from protos.tailrace.v1 import prediction_service_pb2, prediction_service_pb2_grpc


class RpcPredictions:
    """`UpstreamPredictions` with one RPC a prediction. Made in the loop that uses it."""

    def __init__(self, channel: grpc.aio.Channel, policy: CallPolicy, link: Link | None = None) -> None:
        """Streams go over `link` where there is one."""
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._policy = policy
        self._link = link

    async def create(self, new: NewPrediction, *, caller: Caller) -> PredictionRecord:
        """Create a prediction; the fresh request id makes our own retries harmless."""
        request = convert.create_to_proto(new, request_id=str(uuid.uuid4()))
        return convert.record_from_proto(
            await call(self._stub.CreatePrediction, request, self._policy, caller=caller)
        )

    def predict(
        self, news: Sequence[NewPrediction], *, caller: Caller
    ) -> AbstractAsyncContextManager[ChoiceStream]:
        """Create attached predictions and stream them."""
        return predict_attached(self._stub, news, self._policy, caller)

    async def get(
        self,
        prediction_id: str,
        *,
        caller: Caller,
        wait: timedelta = timedelta(0),
        omit_data: bool = False,
    ) -> PredictionRecord:
        """Return a prediction as it stands, or as it stands after `wait`."""
        request = prediction_service_pb2.GetPredictionRequest(id=prediction_id, omit_data=omit_data)
        if wait:
            request.wait.CopyFrom(convert.duration(wait))
        answer = await call(self._stub.GetPrediction, request, self._policy, caller=caller, wait=wait)
        return convert.record_from_proto(answer)

    async def list(self, *, caller: Caller, page_size: int = 0, page_token: str = "") -> PredictionPage:
        """Return a page of predictions."""
        request = prediction_service_pb2.ListPredictionsRequest(page_size=page_size, page_token=page_token)
        return convert.page_from_proto(
            await call(self._stub.ListPredictions, request, self._policy, caller=caller)
        )

    async def cancel(self, prediction_id: str, *, caller: Caller) -> PredictionRecord:
        """Cancel a prediction."""
        request = prediction_service_pb2.CancelPredictionRequest(id=prediction_id)
        return convert.record_from_proto(
            await call(self._stub.CancelPrediction, request, self._policy, caller=caller)
        )

    def open_stream(
        self, prediction_id: str, after_sequence: int, *, caller: Caller
    ) -> RpcEventStream | LinkedEventStream:
        """Stream a prediction's events, over the link if there is one, else by a call of its own."""

        def own_call(after: int) -> RpcEventStream:
            return RpcEventStream(self._stub.StreamPrediction, prediction_id, after, self._policy, caller)

        if self._link is None:
            return own_call(after_sequence)
        return LinkedEventStream(self._link, prediction_id, after_sequence, own_call)
