"""The TypeScript client reads tool calls exactly although the edge is killed in mid-call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.e2e.test_tools import ENDS, TOOLS, block
from tests.support.dialects import CHAT, MESSAGES, Dialect, name_of
from tests.support.npm import run
from tests.support.pair import LIMIT_S, Pair, running_pair, script

pytestmark = pytest.mark.node

LONGEST_LINE = 64 * 1024
GAP_MS = 2000
"""Enough for a kill between two pieces of a call."""
APIS = {"chat": "openai", "messages": "anthropic"}


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=name_of)
async def test_an_edge_killed_in_mid_call_costs_and_repeats_nothing(tmp_path: Path, dialect: Dialect) -> None:
    program = tmp_path / "program.mjs"
    await run("esbuild", "test/calls_program.ts", "--bundle", "--format=esm", f"--outfile={program}")
    before, after = block(city="Ulm").split("lm", 1)
    pieces = [*before, "lm", *after, *block(city="Bonn")]
    delays = [1.0] * len(before) + [GAP_MS, 1.0]
    prompt = script(pieces=pieces, delay_ms=delays)
    async with running_pair(tmp_path) as pair:
        with anyio.fail_after(LIMIT_S):
            lines = await killing_the_edge(pair, program, dialect, prompt)
        made = (await pair.http.get(f"{pair.edge.url}/v1/predictions")).json()["results"]
    end, methods = lines[-1]["part"], lines[-1]["methods"]
    assert (end["type"], end["reason"]) == ("finished", ENDS[dialect.name])
    assert [(call["name"], json.loads(call["arguments"])) for call in end["calls"]] == [
        ("get_weather", {"city": "Ulm"}),
        ("get_weather", {"city": "Bonn"}),
    ]
    assert end["usage"]["outputTokens"] == len(pieces) + 1
    assert (methods[0], set(methods[1:]), len(made)) == ("POST", {"GET"}, 1)


async def killing_the_edge(pair: Pair, program: Path, dialect: Dialect, prompt: str) -> list[dict[str, Any]]:
    """Return the program's lines; the edge is killed and started once a call has begun its arguments."""
    request = dialect.body(prompt, tools=TOOLS[dialect.name])
    given = {"base": pair.edge.url, "api": APIS[dialect.name], "request": request}
    lines: list[dict[str, Any]] = []
    async with await anyio.open_process(["node", str(program), json.dumps(given)], stderr=None) as node:
        assert node.stdout is not None
        output = BufferedByteReceiveStream(node.stdout)
        while not lines or lines[-1]["part"]["type"] in ("text", "tool_calls"):
            lines.append(json.loads(await output.receive_until(b"\n", LONGEST_LINE)))
            calls = lines[-1]["part"].get("calls", ())
            if len(calls) == 1 and calls[0]["arguments"].endswith("U"):
                await pair.edge.kill_and_start()
                await pair.edge.ready()
    return lines
