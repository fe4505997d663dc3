"""A process that writes to a store and says what was acknowledged, for tests that kill or starve it.

`python -m tests.contract.stores.faulty_writer write|starve|open PATH NAME`
"""

from __future__ import annotations

import itertools
import resource
import sys
from dataclasses import replace
from pathlib import Path

import anyio

from service.adapters.stores.sqlite import SqliteStore
from service.domain.errors import StoreUnavailable
from service.domain.events import Started
from service.domain.request import GenerationRequest, TextPrompt
from service.ports.store import Append, Appended
from tests.contract.stores.samples import HASH, NOW, Writer, completed, new, outgoing, output


def say(*words: object) -> None:
    """Print one whole line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def write(path: Path, name: str) -> None:
    """Create and append until killed, a few at a time; `ID LAST` says what was acknowledged."""

    async def stream(lane: int) -> None:
        for turn in itertools.count():
            writers = []
            for number in range(3):
                prediction, accepted = new(f"{name}-{lane}-{turn}-{number}")
                await store.create(prediction, accepted, HASH)
                say(prediction.id, 1)
                writers.append(Writer(await store.claim(prediction.id)))
            await append(writers, [writer.append(Started(NOW)) for writer in writers])
            for step in range(4):
                await append(
                    writers, [w.append(output(f"{w.record.id} {step}"), output("")) for w in writers]
                )
            ends = [writer.append(completed()) for writer in writers]
            await append(writers, [replace(end, outgoing=outgoing(end.prediction_id)) for end in ends])

    async def append(writers: list[Writer], appends: list[Append]) -> None:
        answers = await store.append(appends)
        assert answers == (Appended.OK,) * len(writers)
        for writer in writers:
            say(writer.record.id, writer.record.last_sequence)

    async with SqliteStore(path) as store, anyio.create_task_group() as tasks:
        for lane in range(4):
            tasks.start_soon(stream, lane)


async def starve(path: Path, name: str) -> None:
    """Fill the store up to a limit the system sets on file sizes, then go on without the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with SqliteStore(path) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, most))
        taken = 0
        try:
            for number in range(10_000):
                await store.create(*new(f"{name}-{number}", request=_big()), HASH)
                taken = number + 1
        except StoreUnavailable:
            say("refused after", taken)
        assert len(await store.unfinished()) == taken
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        for number in range(taken, taken + 50):
            await store.create(*new(f"{name}-{number}", request=_big()), HASH)
        say("recovered", len(await store.unfinished()))


async def try_open(path: Path, _: str) -> None:
    """Open the store, and say how that went."""
    try:
        async with SqliteStore(path):
            say("opened")
    except StoreUnavailable as refusal:
        say(refusal.message)


def _big() -> GenerationRequest:
    return GenerationRequest(TextPrompt("x" * 5000))


if __name__ == "__main__":
    _, verb, file, prefix = sys.argv
    anyio.run({"write": write, "starve": starve, "open": try_open}[verb], Path(file), prefix)
