"""What the two hops cost: service and edge against one process that serves the same frames.

Nothing is generated: the engine says fixed pieces. Paced, it is a step engine, where every stream
gets one token at the same tick, as continuous batching does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.figures import Aim, Amount, Comparison, Findings
from benchmarks.load_plan import LoadReport, Plan, WindowReport, run_load
from benchmarks.servers import Bridge, Reference, running_bridge, running_reference
from tests.support.processes import Service

MARK = "~"
"""In every piece, so that the client can count tokens in merged events."""
PIECES = [f" {word}{MARK}" for word in ("the", "river", "bends", "and", "a", "heron", "waits", "in", "shade")]
REFERENCE = "one process, no gRPC"
SLOTS = 64
SPARE_S = 2
"""Longer than the window: streams begin before it and end after it."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BridgeSize:
    """How much is measured."""

    paced: tuple[tuple[int, float, int], ...] = ((64, 10, 2), (8, 4, 1), (1, 4, 1))
    """Streams, window in seconds, rounds."""
    rate: int = 50
    saturated_streams: int = 64
    saturated_tokens: int = 6000
    """Of each stream."""
    saturated_rounds: int = 2


QUICK = BridgeSize(paced=((64, 3, 1),), saturated_tokens=1500, saturated_rounds=1)


async def measure(size: BridgeSize, folder: Path, say: Say) -> Findings:
    """Measure paced and saturated."""
    return await measure_paced(size, folder / "paced", say) + await measure_saturated(
        size, folder / "saturated", say
    )


async def measure_paced(size: BridgeSize, folder: Path, say: Say) -> Findings:
    """Measure processor time and lateness in the steady state of a step engine."""
    findings = Findings()
    options = msgspec.json.encode({"rate": size.rate}).decode()
    async with AsyncExitStack() as stack:
        reference, bridge = await _start(stack, folder, options, "--rate", str(size.rate))
        for streams, window_s, rounds in size.paced:
            tokens = int(size.rate * (window_s + SPARE_S))
            plan = _plan(streams, tokens, window_s=window_s, tick_s=1 / size.rate)
            found = await _rounds(plan, rounds, bridge, reference, f"{streams} × {size.rate} tokens/s", say)
            findings += _judge_paced(f"{streams} × {size.rate} tokens/s", found, main=streams == SLOTS)
            if streams == SLOTS:
                say("bridge: chat completions")
                watched = msgspec.structs.replace(plan, base_url=bridge.edge.url, watched=bridge.watched())
                chat = msgspec.structs.replace(watched, dialect="chat", bodies=chat_bodies(streams, tokens))
                chats = [await run_load(chat) for _ in range(rounds)]
                findings += _judge_chat(f"{streams} × {size.rate} tokens/s", chats, [one for one, _ in found])
    return findings


async def measure_saturated(size: BridgeSize, folder: Path, say: Say) -> Findings:
    """Measure what goes through when nothing holds the engine back."""
    plan = _plan(size.saturated_streams, size.saturated_tokens)
    name = f"{size.saturated_streams} streams, saturated"
    async with AsyncExitStack() as stack:
        reference, bridge = await _start(stack, folder, "{}")
        found = await _rounds(plan, size.saturated_rounds, bridge, reference, name, say)
    ours, theirs = [pair[0] for pair in found], [pair[1] for pair in found]
    return Findings(
        (
            Comparison(
                f"tokens/s, {name}",
                "tokens/s",
                tuple(one.tokens_per_s for one in ours),
                tuple(one.tokens_per_s for one in theirs),
                REFERENCE,
            ),
            Comparison(
                f"CPU per token, {name}",
                "µs",
                tuple(_whole_us(one, "service", "edge") for one in ours),
                tuple(_whole_us(one, "reference") for one in theirs),
                REFERENCE,
            ),
        ),
        (
            *_shares(ours, f", {name}"),
            Amount(f"tokens per event, {name}", "", tuple(one.output_tokens / one.events for one in ours)),
        ),
    )


async def _start(
    stack: AsyncExitStack, folder: Path, options: str, *arguments: str
) -> tuple[Reference, Bridge]:
    reference = await stack.enter_async_context(running_reference("benchmarks.one_process", *arguments))
    bridge = await stack.enter_async_context(
        running_bridge(folder, engine_slots=str(SLOTS), engine_options=options)
    )
    return reference, bridge


async def _rounds(
    plan: Plan, rounds: int, bridge: Bridge, reference: Reference, name: str, say: Say
) -> list[tuple[LoadReport, LoadReport]]:
    """Load one after the other, in turns; the first, short load of each only warms it up."""
    one = msgspec.structs.replace(plan, base_url=reference.url, watched={"reference": reference.pid})
    two = msgspec.structs.replace(plan, base_url=bridge.edge.url, watched=bridge.watched())
    for each in (one, two):
        await run_load(msgspec.structs.replace(each, bodies=bodies(8, 20), window_s=0))
    found = []
    for number in range(1, rounds + 1):
        say(f"bridge: {name}, round {number} of {rounds}")
        theirs = await run_load(one)
        found.append((await run_load(two), theirs))
    return found


def _plan(streams: int, tokens: int, *, window_s: float = 0, tick_s: float = 0) -> Plan:
    return Plan("", "replicate", bodies(streams, tokens), piece_mark=MARK, window_s=window_s, tick_s=tick_s)


def bodies(streams: int, tokens: int) -> list[dict[str, object]]:
    """Return the creates of equal streams."""
    script = {"pieces": PIECES, "repeat": tokens // len(PIECES) + 1, "end": "length"}
    prompt = f"script:{msgspec.json.encode(script).decode()}"
    given = {"prompt": prompt, "max_tokens": tokens}
    return [{"version": Service.MODEL, "input": given}] * streams


def chat_bodies(streams: int, tokens: int) -> list[dict[str, object]]:
    """Return the chat completions that say the same."""
    ((prompt, model),) = {(str(b["input"]["prompt"]), str(b["version"])) for b in bodies(streams, tokens)}  # type: ignore[index]
    given = {"model": model, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    return [{**given, "messages": [{"role": "user", "content": prompt}]}] * streams


def _judge_chat(name: str, chats: list[LoadReport], predictions: list[LoadReport]) -> Findings:
    """Hold an attached chat stream against a detached stream of Replicate's API."""
    one, two = ([_window_us(each, "service", "edge") for each in side] for side in (chats, predictions))
    ours, theirs = tuple(one), tuple(two)
    return Findings((Comparison(f"CPU per token, {name}, chat", "µs", ours, theirs, "Replicate's stream"),))


def _judge_paced(name: str, found: list[tuple[LoadReport, LoadReport]], *, main: bool) -> Findings:
    ours, theirs = [pair[0] for pair in found], [pair[1] for pair in found]
    windows = [_window(one) for one in ours], [_window(one) for one in theirs]
    comparisons = [
        Comparison(
            f"CPU per token, {name}",
            "µs",
            tuple(_window_us(one, "service", "edge") for one in ours),
            tuple(_window_us(one, "reference") for one in theirs),
            REFERENCE,
            (Aim.AT_MOST, 4.0) if main else None,
        )
    ]
    for percent in (50, 99):
        late = [tuple(_late_ms(window, percent) for window in side) for side in windows]
        comparisons.append(Comparison(f"lateness p{percent}, {name}", "ms", late[0], late[1], REFERENCE))
    if not main:
        return Findings(tuple(comparisons))
    amounts = tuple(
        Amount(f"CPU per token, {name}: {part}", "µs", tuple(_window_us(one, part) for one in ours))
        for part in ("service", "edge", "engine")
    )
    rates = tuple(_window(one).tokens / _window(one).seconds for one in ours)
    return Findings(tuple(comparisons), (*amounts, Amount(f"tokens/s, {name}", "tokens/s", rates)))


def _shares(reports: list[LoadReport], suffix: str) -> tuple[Amount, ...]:
    return tuple(
        Amount(f"CPU per token{suffix}: {part}", "µs", tuple(_whole_us(one, part) for one in reports))
        for part in ("service", "edge", "engine")
    )


def _window(report: LoadReport) -> WindowReport:
    assert report.window is not None
    return report.window


def _window_us(report: LoadReport, *parts: str) -> float:
    return sum(_window(report).cpu_us[part] for part in parts) / _window(report).tokens


def _whole_us(report: LoadReport, *parts: str) -> float:
    return sum(report.cpu_us[part] for part in parts) / report.output_tokens


def _late_ms(window: WindowReport, percent: int) -> float:
    return window.lateness_p50_ms if percent == 50 else window.lateness_p99_ms
