"""Owns what the load tool told: its events and its result, checked and as figures. Pure.

The tool itself counts a stream that ends early as a success, so what it says of each request is checked here:
no error, a usage (the last chunk of a whole stream), and as many tokens as were asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Amount, Findings
from benchmarks.load_plan import LoadFailed


@dataclass(frozen=True, slots=True)
class Asked:
    """What the tool was to send."""

    requests: int
    concurrency: int
    input_tokens: int
    """About as many: the tool cuts a text by its own count."""
    output_tokens: int


def findings_of(asked: Asked, events: str, result: str) -> Findings:
    """Return the tool's figures. Raises LoadFailed unless every request got its whole answer."""
    check(asked, [json.loads(line) for line in events.splitlines()])
    (run,) = json.loads(result)["benchmarks"]
    load = f"{asked.concurrency} at once"
    return Findings(
        amounts=(
            Amount(f"requests without an error, {load}", "", (asked.requests,)),
            _amount(run, "tg_throughput", f"output tokens/s, {load}", "tokens/s"),
            _amount(run, "tg_req_throughput", f"output tokens/s of one stream, {load}", "tokens/s"),
            _amount(run, "pp_throughput", f"input tokens/s, {load}", "tokens/s"),
            _amount(run, "e2e_ttft", f"time to first token, {load}", "ms"),
        )
    )


def check(asked: Asked, events: Sequence[dict[str, Any]]) -> None:
    """Raise LoadFailed unless `events` tell that every request got its whole answer."""
    ends = [event for event in events if event["type"] == "request_end"]
    if failed := [end["error"] for end in ends if end["error"]]:
        raise LoadFailed(f"{len(failed)} of {len(ends)} requests failed: {failed[0]}")
    if len(ends) != asked.requests:
        raise LoadFailed(f"the tool ended {len(ends)} requests, not {asked.requests}")
    if cut := [end for end in ends if not end["prompt_tokens"] or end["total_tokens"] != asked.output_tokens]:
        counts = f"{cut[0]['prompt_tokens']} and {cut[0]['total_tokens']} tokens"
        raise LoadFailed(f"{len(cut)} of {len(ends)} streams were not whole, the first had {counts}")
    if [event["status"] for event in events if event["type"] == "bench_complete"] != ["ok"]:
        raise LoadFailed("the tool did not come to its end")


def _amount(run: dict[str, Any], key: str, what: str, unit: str) -> Amount:
    return Amount(what, unit, tuple(run[key]["values"]))
