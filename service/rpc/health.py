"""`grpc.health.v1`: whether to send work here.

All our services share one state. It is NOT_SERVING until a model has been loaded for the first
time, SERVING from then on, and NOT_SERVING for good once the service drains. An engine that is
being started again changes nothing: predictions still queue, and their streams go on.

Why not grpcio-health-checking's own aio servicer (1.85.1): it lacks `List`, and its `Watch` writes
while holding the lock that `set` needs, so one watcher that does not read would block the drain.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.rpc.status import UNKNOWN_SERVICE
from service.runtime.models import Models, ModelState

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_Status = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # comes without types
    """See the module."""

    def __init__(self, services: Sequence[str]) -> None:
        self._names = frozenset({"", *services})
        self._serving = False
        self._drained = False
        self._closed = False
        self._changed = anyio.Event()

    async def run(self, models: Models) -> None:
        """Serve from the first time a model is ready."""
        while not any(model.state is ModelState.READY for model in models.list()):
            await models.changed()
        if not self._drained:
            self._serving = True
            self._notify()

    def drain(self) -> None:
        """Turn new work away, for good."""
        self._drained, self._serving = True, False
        self._notify()

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._notify()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Return one service's state."""
        if request.service not in self._names:
            await context.abort(UNKNOWN_SERVICE, "no such service")
        return _Status(status=self._status(request.service))

    async def List(
        self, request: health_pb2.HealthListRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """Return all states."""
        statuses = {name: _Status(status=self._status(name)) for name in self._names}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Send one service's state now and at each change, until the service stops."""
        sent = None
        while True:
            changed, closed = self._changed, self._closed
            status = self._status(request.service)
            if status != sent:
                await context.write(_Status(status=status))
                sent = status
            if closed:
                return
            await changed.wait()  # set already if there was news during the write

    def _status(self, service: str) -> int:
        if service not in self._names:
            return int(_Status.SERVICE_UNKNOWN)
        return int(_Status.SERVING if self._serving else _Status.NOT_SERVING)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
