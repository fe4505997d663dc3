"""`tailrace.v1.ModelService` over the runtime."""

from __future__ import annotations

import grpc

from protos.tailrace.v1 import model_service_pb2 as mpb
from protos.tailrace.v1.model_service_pb2_grpc import ModelServiceServicer
from service.rpc.convert import count_input, model_to, required
from service.runtime.models import Models


class ModelServicer(ModelServiceServicer):
    """See `model_service.proto`; each method's errors end the call in `boundary`."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ListModels(
        self, request: mpb.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> mpb.ListModelsResponse:
        """List all."""
        return mpb.ListModelsResponse(models=[model_to(model) for model in self._models.list()])

    async def GetModel(self, request: mpb.GetModelRequest, context: grpc.aio.ServicerContext) -> mpb.Model:
        """Return one."""
        return model_to(self._models.get(required("name", request.name)))

    async def CountTokens(
        self, request: mpb.CountTokensRequest, context: grpc.aio.ServicerContext
    ) -> mpb.CountTokensResponse:
        """Count."""
        name = required("model", request.model)
        return mpb.CountTokensResponse(input_tokens=await self._models.count(name, count_input(request)))
