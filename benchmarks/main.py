"""`python -m benchmarks [--quick] [--only PART] [--write] [--model FILE]`.

Progress goes to standard error, the report to standard output.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import uvloop

from benchmarks import behaviour, bridge, real
from benchmarks.figures import Findings
from benchmarks.load_plan import LoadFailed
from benchmarks.machine import describe_machine
from benchmarks.report import render, replace_figures
from benchmarks.servers import CannotStart
from service.model_fetch import FetchError, fetch

PARTS = ("real", "bridge", "behaviour")
PAGE = Path(__file__).with_name("README.md")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write when told to; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Tailrace here.")
    parser.add_argument("--quick", action="store_true", help="under a minute, with rougher numbers")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be repeated")
    parser.add_argument("--model", type=Path, help="GGUF file for `real`; default: the demo model")
    parser.add_argument("--write", action="store_true", help=f"also put the report into {PAGE.name}")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, like Ctrl-C
    parts = options.only or PARTS
    if options.model is not None and not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    model = options.model
    try:
        if model is None and "real" in parts:
            model = fetch()
        findings = anyio.run(
            measure, parts, model, options.quick, backend_options={"loop_factory": uvloop.new_event_loop}
        )
    except KeyboardInterrupt:
        return 130
    except (LoadFailed, CannotStart, FetchError) as error:
        print(error, file=sys.stderr)
        return 1
    figures = render(findings, describe_machine())
    print(figures)
    if options.write:
        given = sys.argv[1:] if arguments is None else arguments
        command = shlex.join(["python", "-m", "benchmarks", *given])
        made = f"Made on {time.strftime('%Y-%m-%d')} by `{command}`.\n\n{figures}"
        PAGE.write_text(replace_figures(PAGE.read_text(), made))
    return 0


async def measure(parts: Sequence[str], model: Path | None, quick: bool) -> Findings:
    """Run the parts one after the other."""
    began_s = time.monotonic()
    findings = Findings()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began_s:5.1f} s] {text}", file=sys.stderr, flush=True)

    with TemporaryDirectory(prefix="tailrace-bench-") as name:
        folder = Path(name)
        if "real" in parts and model is not None:
            size = real.QUICK if quick else real.RealSize()
            findings += await real.measure(size, model, folder, say)
        if "bridge" in parts:
            findings += await bridge.measure(bridge.QUICK if quick else bridge.BridgeSize(), folder, say)
        if "behaviour" in parts:
            extent = behaviour.QUICK if quick else behaviour.BehaviourSize()
            findings += await behaviour.measure(extent, folder, say)
        say("done")
    return findings
