"""`python -m benchmarks.load_test [--requests N] [--concurrency N] [--write] [--model FILE]`.

Progress goes to standard error, the report to standard output. The exit status is 1 unless every request
got its whole answer.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

# The run starts processes while gRPC is in use; its fork handlers would only complain.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import anyio

from benchmarks.figures import Findings
from benchmarks.load_plan import LoadFailed
from benchmarks.load_test.report import Asked
from benchmarks.load_test.tool import is_installed, run_tool
from benchmarks.machine import describe_machine
from benchmarks.report import render, replace_figures
from benchmarks.servers import CannotStart, running_bridge
from service.model_fetch import FetchError, fetch
from tests.support.processes import Service

PAGE = Path(__file__).parents[1] / "README.md"
MARKS = ("<!-- load test: written by `make load-test ARGS=--write` -->", "<!-- end of load test -->")
INPUT_TOKENS = 64
OUTPUT_TOKENS = 24


async def measure(model: Path, asked: Asked) -> Findings:
    """Run service and edge on the model, and the tool on them."""
    with TemporaryDirectory(prefix="tailrace-load-pair-") as name:
        slots = str(asked.concurrency)
        async with running_bridge(
            Path(name), engine="llama_cpp", model_path=str(model), engine_slots=slots,
            engine_context_tokens="512",
        ) as bridge:  # fmt: skip
            return await run_tool(bridge.edge.url, Service.MODEL, model, asked)


def main() -> int:
    """Run, print, and write when told to; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_test", description=__doc__)
    parser.add_argument("--requests", type=int, default=40, help="a multiple of --concurrency")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--model", type=Path, help="GGUF file; default: the demo model")
    parser.add_argument("--write", action="store_true", help=f"also put the report into {PAGE.name}")
    options = parser.parse_args()
    if options.concurrency < 1 or options.requests < 1 or options.requests % options.concurrency:
        parser.error("--requests must be a multiple of --concurrency")
    if not is_installed():
        parser.error("run `make setup-load` first")
    asked = Asked(options.requests, options.concurrency, INPUT_TOKENS, OUTPUT_TOKENS)
    print(f"{asked.requests} requests, {asked.concurrency} at once ...", file=sys.stderr, flush=True)
    try:
        findings = anyio.run(measure, options.model or fetch(), asked)
    except KeyboardInterrupt:
        return 130
    except (LoadFailed, CannotStart, FetchError) as error:
        print(error, file=sys.stderr)
        return 1
    figures = render(findings, describe_machine())
    print(figures)
    if options.write:
        command = shlex.join(["python", "-m", "benchmarks.load_test", *sys.argv[1:]])
        made = f"Made on {time.strftime('%Y-%m-%d')} by `{command}`.\n\n{figures}"
        PAGE.write_text(replace_figures(PAGE.read_text(), made, *MARKS))
    return 0


sys.exit(main())
