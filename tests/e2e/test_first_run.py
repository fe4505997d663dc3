"""`python -m clients.first_run`, the command behind `make run`: what it shows, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.processes import ROOT, alive, children

SERVING = "until Ctrl-C"
EXIT_S = 30


@contextmanager
def first_run(tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start it on free ports and the scripted engine; end it at the end of the block."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SERVICE_", "EDGE_"))}
    settings = {
        "SERVICE_ENGINE": "scripted",
        "SERVICE_STORE_PATH": str(tmp_path / "tailrace.db"),
        "SERVICE_PORT": "0",
        "EDGE_PORT": "0",
        "LOG_DIR": str(tmp_path / "log"),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "clients.first_run"],
        cwd=ROOT,
        env={**inherited, **settings, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=EXIT_S)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Return what is shown up to and with the line that holds `text`."""
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if text in line:
            return shown
    raise AssertionError(f"{text!r} never came:\n{shown}")


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def test_once_streams_a_prediction_and_ends_well(tmp_path: Path) -> None:
    words = 'script:{"pieces": ["one ", "two ", "three"]}'
    with first_run(tmp_path, ONCE="1", PROMPT=words) as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert "one two three" in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    with first_run(tmp_path) as process:
        shown = read_until(process, SERVING)
        base = re.findall(r"http://127\.0\.0\.1:\d+", shown)
        assert len(set(base)) == 1
        family = descendants(process.pid)
        assert len(family) >= 3
        process.send_signal(number)
        rest, _ = process.communicate(timeout=EXIT_S)
    assert process.returncode == 0, rest
    assert "Traceback" not in rest
    assert [pid for pid in family if alive(pid)] == []


def test_a_busy_port_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with first_run(tmp_path, EDGE_PORT=str(port)) as process:
            shown, _ = process.communicate(timeout=EXIT_S)
    assert process.returncode == 2
    assert f"port {port}" in shown
    assert "EDGE_PORT=" in shown


def test_a_misspelt_setting_ends_it_with_the_reason(tmp_path: Path) -> None:
    with first_run(tmp_path, EDGE_KEEPALIV="3") as process:
        shown, _ = process.communicate(timeout=EXIT_S)
    assert process.returncode == 1
    assert "EDGE_KEEPALIVE" in shown


def test_a_first_prediction_that_fails_is_a_failure(tmp_path: Path) -> None:
    with first_run(tmp_path, ONCE="1", PROMPT='script:{"pieces": ["a"], "fail_after": 1}') as process:
        shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1, shown
    assert "Failed" in shown
