"""Owns webhooks over gRPC: the implementation of `UpstreamWebhooks`."""

from typing import Final

import grpc

from edge.upstream import convert
from edge.upstream.calls import CallPolicy, call
from edge.upstream.metadata import Caller
from edge.upstream.records import WebhookDelivery
from protos.tailrace.v1 import prediction_service_pb2, prediction_service_pb2_grpc

PAGE: Final = 100
"""Calls that are shown of one prediction."""


class RpcWebhooks:
    """`UpstreamWebhooks` over gRPC."""

    def __init__(self, channel: grpc.aio.Channel, policy: CallPolicy) -> None:
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        self._policy = policy

    async def secret(self, *, caller: Caller) -> str:
        """Return the secret that signs the calls of what this caller creates."""
        request = prediction_service_pb2.GetWebhookSecretRequest(owner=caller.owner)
        answer = await call(self._stub.GetWebhookSecret, request, self._policy, caller=caller)
        return str(answer.key)

    async def deliveries(self, prediction_id: str, *, caller: Caller) -> tuple[WebhookDelivery, ...]:
        """Return the calls of one prediction."""
        request = prediction_service_pb2.ListWebhookDeliveriesRequest(
            prediction_id=prediction_id, page_size=PAGE, owner=caller.acts_for
        )
        answer = await call(self._stub.ListWebhookDeliveries, request, self._policy, caller=caller)
        return tuple(convert.delivery_from_proto(delivery) for delivery in answer.deliveries)
