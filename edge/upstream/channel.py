"""Owns the gRPC channel to the service: its options, and why each has its value.

A channel belongs to the event loop that is running when it is made; there is one of each per
process, and none before the loop runs.
"""

from typing import Final

import grpc

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Largest message either way. The HTTP body limit lies far below it, so that is met first."""

KEEPALIVE_MS: Final = 30_000
"""Ping an idle connection that has calls. The service permits one every 10 s; a client that pings
faster than permitted is thrown off in the middle of a silent prefill."""

KEEPALIVE_TIMEOUT_MS: Final = 10_000
"""Without an answer for so long the connection is dead and its calls end UNAVAILABLE."""

OPTIONS: Final = (
    # Without it the window grows to 4 MiB, and a reader that never reads has the service send so much.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # gRPC's own pauses grow to two minutes; a service that restarts is back in seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Retries are ours (`edge.upstream.retry`): visible, bounded, and only where a repeat is safe.
    ("grpc.enable_retries", 0),
)


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to `host:port` or `unix:/path`; it connects on the first call.

    Must be called in the running loop, and be used as an async context manager.
    """
    return grpc.aio.insecure_channel(address, options=OPTIONS)
