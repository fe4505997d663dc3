"""Replicate's Python client, unchanged, with its HTTP traffic noted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import httpx
import replicate

from tests.support.pair import LIMIT_S

T = TypeVar("T")
SILENCE_S = 1.5
"""How long a stream may be silent here: the client's own 30 s, scaled."""


class Wire:
    """All answers that the client got, in order."""

    def __init__(self) -> None:
        self.answers: list[httpx.Response] = []

    def note(self, answer: httpx.Response) -> None:
        self.answers.append(answer)

    def calls(self, method: str, path_part: str) -> list[httpx.Response]:
        """Return the answers to one kind of request."""
        return [a for a in self.answers if a.request.method == method and path_part in a.request.url.path]


@contextmanager
def replicate_client(
    base_url: str, wire: Wire, *, silence_s: float = SILENCE_S
) -> Iterator[replicate.Client]:
    """Yield the client, quick to poll and impatient with silence."""
    client = replicate.Client(
        api_token="r8_conformance",
        base_url=base_url,
        timeout=httpx.Timeout(10, read=silence_s),
        event_hooks={"response": [wire.note]},
        trust_env=False,
    )
    client.poll_interval = 0.05
    try:
        yield client
    finally:
        client._client.close()


async def in_thread(function: Callable[..., T], *args: Any, limit_s: float = LIMIT_S, **kwargs: Any) -> T:
    """Run the synchronous client beside the event loop, bounded."""
    with anyio.fail_after(limit_s):
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)
