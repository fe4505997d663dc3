"""`tailrace.v1.PredictionService` over the runtime: no decisions, only the mapping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from protos.metadata import REPLAYED
from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as spb
from protos.tailrace.v1.prediction_service_pb2_grpc import PredictionServiceServicer
from service.domain.lifecycle import Prediction
from service.ports.clock import Clock
from service.rpc.calls import OpenCalls
from service.rpc.convert import (
    delivery_to,
    events_from,
    moment_from,
    new_prediction,
    owner_from,
    page_size,
    prediction_to,
    refused,
    required,
    wait_from,
)
from service.runtime.predictions import Predictions
from service.runtime.webhooks import Webhooks

MAX_PAGE_BYTES = 6 * 1024 * 1024
"""A page of large requests is made shorter than asked, to fit into one message of 8 MiB."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a stream begins, and for whom."""

    id: str
    after: int
    owner: str
    attach: bool
    unjoined: bool = False


class PredictionServicer(PredictionServiceServicer):
    """See `prediction_service.proto`; each method's errors end the call in `boundary`."""

    def __init__(self, predictions: Predictions, webhooks: Webhooks, calls: OpenCalls, clock: Clock) -> None:
        self._predictions = predictions
        self._webhooks = webhooks
        self._calls = calls
        self._monotonic: Callable[[], float] = clock.monotonic

    # A coroutine that writes, where the generated base wants an async iterator: see style A6.
    async def Predict(  # type: ignore[override]
        self, request: spb.PredictRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Create and stream. The caller's going cancels the prediction."""
        created = await self._predictions.create(new_prediction(request, attached=True))
        place = LogPlace(created.prediction.id, 0, request.owner, attach=True)
        await self._stream(place, context, accepted_only=request.accepted_only)

    async def CreatePrediction(
        self, request: spb.CreatePredictionRequest, context: grpc.aio.ServicerContext
    ) -> pb.Prediction:
        """Create. The caller's going changes nothing."""
        created = await self._predictions.create(new_prediction(request, attached=request.attached))
        if created.fresh:
            return prediction_to(created.prediction)
        context.set_trailing_metadata(((REPLAYED, "1"),))
        return await self._whole(created.prediction)

    async def GetPrediction(
        self, request: spb.GetPredictionRequest, context: grpc.aio.ServicerContext
    ) -> pb.Prediction:
        """Read, maybe after a wait. The caller's going changes nothing."""
        prediction_id, owner = required("id", request.id), owner_from(request)
        with self._calls.enter():
            record = await self._predictions.get(prediction_id, wait_from(request), owner=owner)
        return prediction_to(record, omit_request=True) if request.omit_data else await self._whole(record)

    async def ListPredictions(
        self, request: spb.ListPredictionsRequest, context: grpc.aio.ServicerContext
    ) -> spb.ListPredictionsResponse:
        """List. The caller's going changes nothing."""
        limit, owner = page_size(request), owner_from(request)
        after, before = moment_from(request, "created_after"), moment_from(request, "created_before")
        while True:
            page = await self._predictions.list(
                limit=limit,
                token=request.page_token,
                owner=owner,
                created_after=after,
                created_before=before,
            )
            message = spb.ListPredictionsResponse(
                predictions=[prediction_to(record) for record in page.predictions],
                next_page_token=page.next_token,
            )
            if limit == 1 or message.ByteSize() <= MAX_PAGE_BYTES:
                return message
            limit = max(1, min(limit, len(page.predictions)) // 2)

    async def CancelPrediction(
        self, request: spb.CancelPredictionRequest, context: grpc.aio.ServicerContext
    ) -> pb.Prediction:
        """Cancel. The caller's going does not take it back."""
        prediction_id, owner = required("id", request.id), owner_from(request)
        return await self._whole(await self._predictions.cancel(prediction_id, owner=owner))

    async def ListWebhookDeliveries(
        self, request: spb.ListWebhookDeliveriesRequest, context: grpc.aio.ServicerContext
    ) -> spb.ListWebhookDeliveriesResponse:
        """List the calls of webhooks. The caller's going changes nothing."""
        limit, owner = page_size(request), owner_from(request)
        if request.prediction_id:
            await self._predictions.get(request.prediction_id, owner=owner)
            found = await self._webhooks.deliveries(request.prediction_id, limit)
        else:
            found = await self._webhooks.given_up(limit, owner=owner)
        return spb.ListWebhookDeliveriesResponse(deliveries=[delivery_to(delivery) for delivery in found])

    async def GetWebhookSecret(
        self, request: spb.GetWebhookSecretRequest, context: grpc.aio.ServicerContext
    ) -> spb.GetWebhookSecretResponse:
        """Return what an owner's receivers verify with. The caller's going changes nothing."""
        return spb.GetWebhookSecretResponse(key=self._webhooks.key_of(owner_from(request)))

    async def StreamPrediction(  # type: ignore[override]  # as above
        self, request: spb.StreamPredictionRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream from a point. The caller's going cancels only with `attach`."""
        prediction_id = required("id", request.id)
        if request.after_sequence < 0:
            raise refused("after_sequence", "must not be negative")
        place = LogPlace(
            prediction_id,
            request.after_sequence,
            owner_from(request),
            attach=request.attach,
            unjoined=request.unjoined,
        )
        await self._stream(place, context)

    async def _stream(
        self, place: LogPlace, context: grpc.aio.ServicerContext, *, accepted_only: bool = False
    ) -> None:
        """Write a log to its end, or its first entry alone; whatever ends this earlier closes the cursor."""
        opened = self._predictions.open_log(place.id, place.after, attach=place.attach, owner=place.owner)
        with self._calls.enter() as call:
            async with opened as cursor:
                if place.after:
                    # There may be no event for long: say already that the stream is open.
                    await context.send_initial_metadata(())
                try:
                    while entries := await cursor.next():
                        shown = entries[:1] if accepted_only else entries
                        for event in events_from(place.id, shown, unjoined=place.unjoined):
                            call.write_began = self._monotonic()
                            await context.write(event)
                            call.write_began = math.inf
                        if accepted_only:
                            await cursor.skip_to_end()
                finally:
                    cursor.returning = call.ended_by_us

    async def _whole(self, record: Prediction) -> pb.Prediction:
        if record.data_removed:
            return prediction_to(record)
        return prediction_to(record, await self._predictions.read_output(record.id, owner=record.owner))
