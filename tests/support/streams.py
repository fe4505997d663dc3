"""Readers of gRPC streams that check what every reader may rely on."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio
import grpc

from protos.tailrace.v1 import prediction_pb2 as pb
from protos.tailrace.v1 import prediction_service_pb2 as rpc
from tests.support.processes import Service, Stubs


class Log:
    """What a reader has seen, checked as it comes: no hole, no repeat, one end."""

    def __init__(self) -> None:
        self.text = ""
        self.sequence = 0
        self.end: pb.Completed | None = None
        self.id = ""

    def take(self, event: pb.PredictionEvent) -> None:
        """Add an event."""
        assert self.end is None, "an event after the end"
        assert event.first_sequence == self.sequence + 1, "a hole or a repeat"
        self.sequence = event.sequence
        match event.WhichOneof("event"):
            case "accepted":
                self.id = event.accepted.prediction_id
            case "output":
                self.text += event.output.text
            case "completed":
                self.end = event.completed


async def follow(stubs: Stubs, prediction_id: str, log: Log) -> None:
    """Read a prediction to its end, coming back as often as the service goes away."""
    while log.end is None:
        request = rpc.StreamPredictionRequest(id=prediction_id, after_sequence=log.sequence)
        call = stubs.predictions.StreamPrediction(request, wait_for_ready=True)
        try:
            async for event in call:
                log.take(event)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        finally:
            call.cancel()


async def create(stubs: Stubs, generation: pb.GenerationRequest) -> str:
    """Create a detached prediction."""
    request = rpc.CreatePredictionRequest(model=Service.MODEL, generation=generation)
    prediction = await stubs.predictions.CreatePrediction(request, wait_for_ready=True)
    return str(prediction.id)


async def disturb(
    act: Callable[[], Awaitable[None]],
    *,
    times: int,
    progress: Callable[[], int],
    over: Callable[[], bool],
    step: int = 10,
) -> None:
    """Call `act` so many times, each after `progress` has grown by 1 to `step`.

    Fails if the stream was `over` before: then it was too short for the test to mean anything.
    """
    for done in range(times):
        goal = progress() + random.randint(1, step)
        while progress() < goal:
            assert not over(), f"the stream ended after {done} of {times} disturbances"
            await anyio.sleep(0.005)  # what a reader has seen gives no event
        await act()
