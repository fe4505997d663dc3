"""Owns the question whether the service can be reached and serves.

Specification: gRPC health checking protocol, `grpc.health.v1.Health/Check` of the empty name.
"""

from datetime import timedelta
from typing import Final

import anyio
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from edge.upstream.calls import guarded
from edge.upstream.errors import UpstreamError

FRESH_FOR: Final = timedelta(seconds=1)
"""How old an answer may be, so that probes do not become load."""

DEADLINE: Final = timedelta(seconds=1)


class RpcHealth:
    """`UpstreamHealth` over gRPC. Probes that come together share one call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._turn = anyio.Lock()
        self._answer = False
        self._fresh_until_s = float("-inf")

    async def is_serving(self) -> bool:
        """Return whether the service answers SERVING."""
        async with self._turn:
            if anyio.current_time() >= self._fresh_until_s:
                self._answer = await self._ask()
                self._fresh_until_s = anyio.current_time() + FRESH_FOR.total_seconds()
        return self._answer

    async def _ask(self) -> bool:
        request = health_pb2.HealthCheckRequest()
        try:
            answer = await guarded(
                self._stub.Check(request, timeout=DEADLINE.total_seconds(), wait_for_ready=True)
            )
        except UpstreamError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
