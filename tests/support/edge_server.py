"""The real edge for tests: its application under its own server on a free port, in this process."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import anyio
import httpx
import structlog

from edge.app import create_app
from edge.http.lifecycle import Lifecycle
from edge.http.protocol import ConnectionLimits
from edge.http.server import ServerOptions, bind, serve
from edge.settings import Settings
from edge.upstream.calls import CallPolicy
from edge.upstream.connection import open_upstream

SECRET = b"a secret for tests only"


@dataclass
class RunningEdge:
    """What a test needs to talk to the edge."""

    url: str
    port: int
    client: httpx.AsyncClient
    lifecycle: Lifecycle
    log: list[dict[str, object]] = field(default_factory=list)

    def raw(self) -> socket.socket:
        """Return a fresh blocking connection; use it in a thread."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


def edge_settings(service_address: str, **changes: object) -> Settings:
    """Return settings scaled down for tests."""
    values: dict[str, object] = {
        "port": 0,
        "allowed_hosts": ("h",),  # what raw requests of tests say
        "service_address": service_address,
        "hold_after_done": timedelta(0),
        "drain_spread": timedelta(0),
        "call_retry_budget": timedelta(seconds=5),
        "retry_budget": timedelta(seconds=5),
    }
    return Settings.model_validate(values | changes)


@asynccontextmanager
async def run_edge(settings: Settings, limits: ConnectionLimits | None = None) -> AsyncIterator[RunningEdge]:
    """Serve an edge until the block ends; it then drains and stops by itself."""
    lines: list[dict[str, object]] = []
    log = structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[_keep(lines)],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )
    lifecycle = Lifecycle()
    policy = CallPolicy(settings.call_deadline, settings.call_retry_budget, settings.retry_budget)
    listener = bind(settings.host, 0)
    port = listener.getsockname()[1]
    options = ServerOptions(limits or ConnectionLimits(), settings.drain_notice, timedelta(seconds=5))
    async with open_upstream(settings.service_address, policy) as upstream:
        app = create_app(settings, upstream, lifecycle, SECRET, log)
        task = asyncio.get_running_loop().create_task(serve(app, listener, options, lifecycle))
        url = f"http://127.0.0.1:{port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client:
                yield RunningEdge(url, port, client, lifecycle, lines)
        finally:
            lifecycle.begin_drain()
            with contextlib.suppress(asyncio.CancelledError), anyio.CancelScope(shield=True):
                await asyncio.wait_for(task, 20)


def _keep(lines: list[dict[str, object]]) -> structlog.typing.Processor:
    def keep(logger: object, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        lines.append({"level": method, **event})
        return event

    return keep
