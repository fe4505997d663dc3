"""Owns what the load client is told and what it answers, and how it is run: as a process of its own.

The client's own work must not slow down what it measures, nor the other way round within one loop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import anyio
import msgspec

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 180
Dialect = Literal["replicate", "chat"]


class LoadFailed(Exception):
    """A stream did not go as planned; the text says which way."""


class Plan(msgspec.Struct, frozen=True):
    """Streams that are all begun at once, and what is to be watched meanwhile."""

    base_url: str
    dialect: Dialect
    bodies: list[dict[str, object]]
    """Of the creating POST; one a stream."""
    headers: dict[str, str] = {}
    piece_mark: str = ""
    """One ASCII character that is once in every token's text and nowhere else: tokens are then counted as
    they arrive, and at the end held against the server's own count."""
    watched: dict[str, int] = {}
    """Name → id of the processes whose processor time is wanted."""
    settle_s: float = 0.5
    """From the last stream's first token to the window's beginning."""
    window_s: float = 0
    """How long the steady state is watched; 0 for not at all."""
    tick_s: float = 0
    """Of a step engine: tokens come due at multiples of it on the monotonic clock. 0: no lateness."""


class StreamReport(msgspec.Struct, frozen=True):
    """One stream, read to its end."""

    sent_s: float
    """When the POST was sent, on the monotonic clock."""
    first_s: float
    """When the first output text had arrived."""
    last_s: float
    events: int
    """Events with output text."""
    input_tokens: int
    output_tokens: int
    """As the server counts them, not from events: an event may carry several tokens."""


class WindowReport(msgspec.Struct, frozen=True):
    """The steady state: all streams begun, none ended."""

    seconds: float
    tokens: int
    """As they arrived; 0 without a piece mark."""
    cpu_us: dict[str, float]
    lateness_p50_ms: float
    """From a token's due time to its arrival."""
    lateness_p99_ms: float


class LoadReport(msgspec.Struct, frozen=True):
    """What the client saw."""

    streams: list[StreamReport]
    cpu_us: dict[str, float]
    """From before the first POST to after the last token."""
    client_cpu_us: float
    window: WindowReport | None = None

    @property
    def output_tokens(self) -> int:
        """All tokens of all streams."""
        return sum(stream.output_tokens for stream in self.streams)

    @property
    def events(self) -> int:
        """All output events of all streams."""
        return sum(stream.events for stream in self.streams)

    @property
    def tokens_per_s(self) -> float:
        """All tokens over the time from the first POST to the last token."""
        begin = min(stream.sent_s for stream in self.streams)
        return self.output_tokens / (max(stream.last_s for stream in self.streams) - begin)

    @property
    def first_token_s(self) -> list[float]:
        """Each stream's time from its POST to its first output text."""
        return [stream.first_s - stream.sent_s for stream in self.streams]


async def run_load(plan: Plan) -> LoadReport:
    """Run the client on `plan`. Raises LoadFailed."""
    with anyio.move_on_after(TIMEOUT_S):
        done = await anyio.run_process(
            [sys.executable, "-m", "benchmarks.load_client"],
            input=msgspec.json.encode(plan),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
        )
        if done.returncode:
            raise LoadFailed(done.stderr.decode("utf-8", "replace").strip()[-2000:])
        return msgspec.json.decode(done.stdout, type=LoadReport)
    raise LoadFailed(f"the streams did not end within {TIMEOUT_S} s")
