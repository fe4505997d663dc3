"""Run the check: `python -m benchmarks.gpu_check [--quick] [--out FOLDER]`; exit code 1 if it failed."""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu_check.figures import Report
from tests.support.exllamav2.library import install

ROOT = Path(__file__).parents[2]


def machine() -> dict[str, str]:
    """Return what the numbers depend on."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none (dry run)"
    return {
        "GPU": gpu,
        "CUDA": str(torch.version.cuda),
        "torch": torch.__version__,
        "Python": platform.python_version(),
    }


def run_tests(report: Report) -> None:
    """Run the engine's tests, its contract first of all, on whatever this machine has."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/exllamav2", "-q", "-p", "no:randomly"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-200:]
    report.add("tests", "tests/exllamav2", re.sub(r"=+", "", last).strip(), passed=done.returncode == 0)
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            report.add("tests", line.split(" - ")[0], "", passed=False)


def main() -> int:
    """Run all steps and write what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "var" / "gpu-check")
    parser.add_argument("--quick", action="store_true", help="without the tests")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    report = Report(machine())
    install()  # without a GPU; with one it only sees that the kernels are compiled
    from service.adapters.engines.exllamav2.attention_import import import_library

    import_library()
    report.add("library", "import, compiled kernels included", time.perf_counter() - began, "s")
    from benchmarks.gpu_check import kernels, speed

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        steps: tuple[Callable[[], None], ...] = (
            lambda: kernels.check_attention(report),
            lambda: kernels.check_tokens(report, folder),
            lambda: kernels.check_gptq(report, folder),
            lambda: speed.measure(report, speed.make_load(folder), folder),
        )
        for step in steps:
            step()
            sys.stderr.write(f"{time.perf_counter() - began:.0f} s: {report.figures[-1].step}\n")
        if not arguments.quick:
            run_tests(report)
    report.add("check", "whole run", time.perf_counter() - began, "s")
    (arguments.out / "gpu_check.json").write_text(report.json(), encoding="utf-8")
    (arguments.out / "gpu_check.md").write_text(report.table(), encoding="utf-8")
    sys.stdout.write(report.table())
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
