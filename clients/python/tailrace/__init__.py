"""Tailrace's gRPC API for Python: `AsyncClient` for asyncio, `Client` for everything else.

    async with AsyncClient("127.0.0.1:50051") as client:
        async with client.predict("local/smollm2-135m-instruct", prompt="Hello") as stream:
            async for event in stream:
                print(event.output.text, end="")

Owns what every caller would write again: channel options, errors with a reason, streams that resume
and end their call. Messages are the generated ones (`protos.tailrace.v1`), not copies of them.
"""

from tailrace.aio import AsyncClient, AsyncStream
from tailrace.errors import StreamBroken, TailraceError, Violation
from tailrace.requests import generation
from tailrace.sync import Client, Stream

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Stream",
    "StreamBroken",
    "TailraceError",
    "Violation",
    "generation",
]
