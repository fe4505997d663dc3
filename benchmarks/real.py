"""What a user of a real model loses to the two hops: the edge against llama.cpp's own HTTP server.

The same library on the same file with the same settings generates on both sides, one side at a time,
in turns: greedy, the same chats, the same bound on tokens. The text may still differ in length where
rounding depends on how streams were batched; tokens/s counts what came, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import anyio

from benchmarks.figures import Aim, Comparison, Findings
from benchmarks.load_plan import LoadReport, Plan, run_load
from benchmarks.servers import Bridge, Reference, running_bridge, running_reference
from tests.support.processes import Service

REFERENCE = "llama.cpp's own server"
SLOTS = 8
CONTEXT_TOKENS = 1024
"""Of one slot."""
BATCH_TOKENS = 256
REST_S = 0.3
"""Between two loads, so that the last one's worker threads have gone to sleep."""

TOPICS = (
    "a lighthouse keeper", "the history of bread", "a river in winter", "how bicycles stay upright",
    "a city without cars", "the life of a beaver", "an old violin", "how maps are made",
    "a night train", "the colour blue", "a garden on a roof", "why the sea is salt",
    "a lost letter", "how bees find home", "a bridge of stone", "the first snow",
)  # fmt: skip

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RealSize:
    """How much is measured."""

    streams: tuple[int, ...] = (1, 4, 8)
    rounds: int = 3
    max_tokens: int = 96


QUICK = RealSize(streams=(8,), rounds=1, max_tokens=48)


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: the same chats, once through each side."""

    ours: LoadReport
    theirs: LoadReport


async def measure(size: RealSize, model: Path, folder: Path, say: Say) -> Findings:
    """Measure tokens/s and time to first token at each number of streams."""
    findings = Findings()
    say("real: loading the model twice")
    arguments = (
        "--model", str(model), "--slots", str(SLOTS), "--context-tokens", str(CONTEXT_TOKENS),
        "--batch-tokens", str(BATCH_TOKENS),
    )  # fmt: skip
    async with (
        running_reference("benchmarks.llama_server", *arguments) as reference,
        running_bridge(
            folder / "real",
            engine="llama_cpp",
            model_path=str(model),
            engine_slots=str(SLOTS),
            engine_context_tokens=str(CONTEXT_TOKENS),
            engine_batch_tokens=str(BATCH_TOKENS),
        ) as bridge,
    ):
        await _round(bridge, reference, chats(SLOTS, 0), 16)  # warms up both
        for streams in size.streams:
            pairs = []
            for number in range(1, size.rounds + 1):
                say(f"real: {streams} stream{'s' * (streams > 1)}, round {number} of {size.rounds}")
                pairs.append(await _round(bridge, reference, chats(streams, number), size.max_tokens))
            findings += judge(streams, pairs)
    return findings


async def _round(
    bridge: Bridge, reference: Reference, messages: list[list[dict[str, str]]], max_tokens: int
) -> Pair:
    asked: dict[str, object] = {"max_tokens": max_tokens, "temperature": 0}
    usage = {"include_usage": True}
    chat_bodies: list[dict[str, object]] = [
        {"messages": chat, **asked, "stream": True, "stream_options": usage} for chat in messages
    ]
    theirs = Plan(reference.url, "chat", chat_bodies, headers=reference.headers)
    creates: list[dict[str, object]] = [
        {"version": Service.MODEL, "input": {"messages": chat, **asked}} for chat in messages
    ]
    ours = Plan(bridge.edge.url, "replicate", creates)
    await anyio.sleep(REST_S)
    first = await run_load(ours)
    await anyio.sleep(REST_S)
    return Pair(first, await run_load(theirs))


def chats(streams: int, number: int) -> list[list[dict[str, str]]]:
    """Return another chat for every stream of a round; no round repeats one of the round before."""
    return [
        [{"role": "user", "content": f"Write a long essay, part {number}, about {topic}."}]
        for topic in (TOPICS * (streams // len(TOPICS) + 1))[:streams]
    ]


def judge(streams: int, pairs: list[Pair]) -> Findings:
    """Compare the rounds of one number of streams."""
    name = f"{streams} stream{'s' * (streams > 1)}"
    return Findings(
        (
            Comparison(
                f"real model: tokens/s, {name}",
                "tokens/s",
                tuple(pair.ours.tokens_per_s for pair in pairs),
                tuple(pair.theirs.tokens_per_s for pair in pairs),
                REFERENCE,
                (Aim.AT_LEAST, 0.95) if streams == SLOTS else None,
            ),
            Comparison(
                f"real model: time to first token, {name}",
                "ms",
                tuple(median(pair.ours.first_token_s) * 1000 for pair in pairs),
                tuple(median(pair.theirs.first_token_s) * 1000 for pair in pairs),
                REFERENCE,
            ),
        ),
        notes=_differences(name, pairs),
    )


def _differences(name: str, pairs: list[Pair]) -> tuple[str, ...]:
    notes = []
    for number, pair in enumerate(pairs, 1):
        ours, theirs = (
            sorted((stream.input_tokens, stream.output_tokens) for stream in side.streams)
            for side in (pair.ours, pair.theirs)
        )
        if ours != theirs:
            counts = f"{_sums(ours)} on ours, {_sums(theirs)} on theirs"
            notes.append(f"{name}, round {number}, prompt and output tokens: {counts}")
    return tuple(notes)


def _sums(counts: list[tuple[int, int]]) -> str:
    return f"{sum(inputs for inputs, _ in counts)} and {sum(outputs for _, outputs in counts)}"
