"""Owns what the edge knows of the served models: asked of the service, kept for a few seconds.

Only models whose facts are known are kept; one that loads for the first time is asked for each time.
The cache holds one entry a served model, so it needs no other bound.
"""

from datetime import timedelta
from typing import Final

import anyio
import grpc

from edge.upstream import convert
from edge.upstream.calls import CallPolicy, call
from edge.upstream.metadata import Caller
from edge.upstream.records import ModelInput, ModelRecord
from protos.tailrace.v1 import model_service_pb2, model_service_pb2_grpc

FRESH_FOR: Final = timedelta(seconds=5)
"""How old an answer may be. A model's facts change only when the service is restarted."""


class RpcModels:
    """`UpstreamModels` over gRPC."""

    def __init__(self, channel: grpc.aio.Channel, policy: CallPolicy) -> None:
        self._stub = model_service_pb2_grpc.ModelServiceStub(channel)
        self._policy = policy
        self._kept: dict[str, tuple[float, ModelRecord]] = {}

    async def get(self, name: str, *, caller: Caller) -> ModelRecord:
        """Return a served model; raises UpstreamError MODEL_NOT_FOUND."""
        kept = self._kept.get(name)
        if kept is not None and kept[0] > anyio.current_time():
            return kept[1]
        request = model_service_pb2.GetModelRequest(name=name)
        return self._keep(
            convert.model_from_proto(await call(self._stub.GetModel, request, self._policy, caller=caller))
        )

    async def list(self, *, caller: Caller) -> tuple[ModelRecord, ...]:
        """Return all served models, in the service's order."""
        request = model_service_pb2.ListModelsRequest()
        answer = await call(self._stub.ListModels, request, self._policy, caller=caller)
        self._kept.clear()
        return tuple(self._keep(convert.model_from_proto(model)) for model in answer.models)

    async def count_tokens(self, name: str, given: ModelInput, *, caller: Caller) -> int:
        """Return what `given` feeds to the model."""
        request = convert.count_to_proto(name, given)
        return int((await call(self._stub.CountTokens, request, self._policy, caller=caller)).input_tokens)

    def _keep(self, model: ModelRecord) -> ModelRecord:
        if model.is_known:
            self._kept[model.name] = (anyio.current_time() + FRESH_FOR.total_seconds(), model)
        return model
