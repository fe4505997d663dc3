"""Owns the running of uvicorn: what it is told, and how the process ends.

The first SIGTERM or SIGINT begins the drain (`Lifecycle`); the server stops taking connections when
streams are told to end, and exits by itself. A second signal ends it at once. Unlike uvicorn's own
server, the signal is not raised again at the end: a drained exit is a success.
"""

import asyncio
import functools
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

import anyio
import uvicorn
from starlette.types import ASGIApp

from edge.http.lifecycle import Lifecycle
from edge.http.protocol import ConnectionLimits, LimitedHttpProtocol


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the HTTP server runs."""

    limits: ConnectionLimits
    drain_notice: timedelta
    """Between saying not ready and ending streams."""

    drain_deadline: timedelta
    """After that, for answers in progress; then they are cut."""


class EdgeServer(uvicorn.Server):
    """uvicorn's server with our way to end."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the drain, or end at once. Called by the signal module, in the loop's thread."""
        self._signals += 1
        if self._signals == 1:
            self._on_signal()
        else:
            self.force_exit = self.should_exit = True

    def stop_accepting(self) -> None:
        """Close the listeners and go when nothing is left to answer."""
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises OSError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


async def serve(app: ASGIApp, listener: socket.socket, options: ServerOptions, lifecycle: Lifecycle) -> None:
    """Serve `app` on `listener` until the process is asked to end."""
    protocol = functools.partial(LimitedHttpProtocol, limits=options.limits)
    config = uvicorn.Config(
        app,
        http=protocol,  # type: ignore[arg-type]  # uvicorn only calls it
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # forwarded headers are read by edge.protocol, which needs the true peer
        server_header=False,
        backlog=2048,
        timeout_keep_alive=max(1, round(options.limits.idle.total_seconds())),
        timeout_graceful_shutdown=max(1, round(options.drain_deadline.total_seconds())),
    )
    loop = asyncio.get_running_loop()
    # A signal handler runs between two instructions of the loop's thread; the loop must be woken too.
    server = EdgeServer(config, lambda: loop.call_soon_threadsafe(lifecycle.begin_drain))
    async with anyio.create_task_group() as group:
        group.start_soon(_drain, server, lifecycle, options.drain_notice)
        await server.serve(sockets=[listener])
        group.cancel_scope.cancel()


async def _drain(server: EdgeServer, lifecycle: Lifecycle, notice: timedelta) -> None:
    await lifecycle.run(notice)
    server.stop_accepting()
