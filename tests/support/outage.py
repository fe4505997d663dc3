"""Streams of several dialects that are open while the service is killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from tests.support.dialects import Dialect, open_stream
from tests.support.pair import LIMIT_S, Pair, Reading

HasBegun = Callable[[Dialect, Reading], object]
Fields = Callable[[Dialect], dict[str, object]]


def _nothing(_: Dialect) -> dict[str, object]:
    return {}


async def read_over_a_death(
    pair: Pair, dialects: Sequence[Dialect], prompt: str, has_begun: HasBegun, fields: Fields = _nothing
) -> dict[str, Reading]:
    """Open a stream of each, kill the service once all have begun, start it, and read them to their ends."""
    readings: dict[str, Reading] = {}

    async def read(dialect: Dialect, started: anyio.Event) -> None:
        asked = open_stream(pair.http, pair.edge.url, dialect, prompt, None, **fields(dialect))
        async with asked as reading:
            while not has_begun(dialect, reading):
                await anext(reading)
            started.set()
            await reading.to_end()
        readings[dialect.name] = reading

    with anyio.fail_after(LIMIT_S):
        async with anyio.create_task_group() as readers:
            started = [anyio.Event() for _ in dialects]
            for dialect, event in zip(dialects, started, strict=True):
                readers.start_soon(read, dialect, event)
            for event in started:
                await event.wait()
            await pair.service.kill()
            await pair.service.start()
    return readings
