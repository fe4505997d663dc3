"""Owns what the kernel says about processes and about this machine. Linux: /proc."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path


def cpu_us(pid: int) -> float:
    """Return the processor time of a process so far, in microseconds, over all its living threads.

    From the scheduler's own account in nanoseconds; `utime` and `stime` count whole clock ticks.
    A thread that ends takes its account with it. 0 for a process that is gone.
    """
    total_ns = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(path.read_text().split()[0])
        except OSError:
            continue
    return total_ns / 1000


def cpu_of_all(pids: Mapping[str, int]) -> dict[str, float]:
    """Return `cpu_us` of each named process."""
    return {name: cpu_us(pid) for name, pid in pids.items()}


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def describe_machine() -> str:
    """Return the processor's model, the usable processors, and the Python."""
    model = "an unnamed processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} core{'s' if cores != 1 else ''}, Python {platform.python_version()}"
