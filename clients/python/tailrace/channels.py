"""Channel options, and one asyncio channel for each event loop and address.

A grpc.aio channel belongs to the loop it was made in: used on another one it fails or hangs. So an
`AsyncClient` asks here each time, and may live across `asyncio.run` calls and threads.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import grpc

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The service's own limit, either way."""

OPTIONS = (
    # The service permits a ping every 10 s; one that pings faster is thrown off in a silent prefill.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # gRPC's own pauses grow to two minutes; a service that restarts is back in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class ChannelPool:
    """The channels to one address, a loop each. A channel goes with its loop, or by `close`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channels: WeakKeyDictionary[asyncio.AbstractEventLoop, grpc.aio.Channel] = WeakKeyDictionary()

    def get(self) -> grpc.aio.Channel:
        """Return the running loop's channel, made on the first call in it."""
        loop = asyncio.get_running_loop()
        channel = self._channels.get(loop)
        if channel is None:
            channel = self._channels[loop] = grpc.aio.insecure_channel(self._address, options=OPTIONS)
        return channel

    async def close(self) -> None:
        """Close the running loop's channel; its calls end."""
        channel = self._channels.pop(asyncio.get_running_loop(), None)
        if channel is not None:
            await channel.close()
