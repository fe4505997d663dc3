"""Service and edge as child processes under honcho, their output in `var/log/`.

The terminal gets only warnings and worse. Ctrl-C and SIGTERM stop all of them (honcho's handlers),
as does the end of any of them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from honcho.environ import parse_procfile
from honcho.manager import SYSTEM_PRINTER_NAME, Manager
from honcho.printer import Message, Printer

from clients.first_run.console import Console

LOUD = frozenset({"warning", "error", "critical"})
TAIL_LINES = 20
"""Lines of a log that are shown when its process ended by itself."""
SIGNALLED = frozenset({130, 143})
"""honcho's return codes after SIGINT and SIGTERM."""


class LogFiles(Printer):  # type: ignore[misc]  # honcho has no types
    """Writes each process's lines to its own file, and the loud ones to the console."""

    def __init__(self, folder: Path, console: Console, on_first: Callable[[], None]) -> None:
        super().__init__()
        self.folder = folder
        self._console = console
        self._on_first: Callable[[], None] | None = on_first
        self.first_end = ""
        """What honcho said of the process that ended first, e.g. `edge stopped (rc=2)`."""
        self._files: dict[str, TextIO] = {}
        self._tails: dict[str, deque[str]] = {}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def path(self, name: str) -> Path:
        """Return where the process's log is."""
        return self.folder / f"{name}.log"

    def tail(self, name: str) -> list[str]:
        """Return the process's last lines."""
        return list(self._tails.get(name, ()))

    def write(self, message: Message) -> None:
        """Take one line from honcho. Its own first line comes when all processes are started."""
        if self._on_first is not None:
            first, self._on_first = self._on_first, None
            first()
        name = message.name
        data = message.data.decode("utf-8", "replace") if isinstance(message.data, bytes) else message.data
        if name == SYSTEM_PRINTER_NAME:
            if " stopped " in data and not self.first_end:
                self.first_end = data.strip()
            return
        if name not in self._files:
            self._files[name] = self.path(name).open("w", encoding="utf-8")
            self._tails[name] = deque(maxlen=TAIL_LINES)
        self._files[name].write(data)
        self._files[name].flush()
        for line in data.splitlines():
            self._tails[name].append(line)
            if loud := warning_in(line):
                self._console.aside(f"  {name}: {loud}")


def warning_in(line: str) -> str:
    """Return a JSON log line in short if it is a warning or worse, else an empty string."""
    try:
        fields = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(fields, dict) or fields.get("level") not in LOUD:
        return ""
    rest = {k: v for k, v in fields.items() if k not in ("event", "level", "timestamp", "exception")}
    return " ".join(
        [str(fields["level"]), str(fields.get("event", "")), *(f"{k}={v}" for k, v in rest.items())]
    )


class Processes:
    """All processes of a Procfile, run together."""

    def __init__(self, procfile: Path, logs: LogFiles, env: Mapping[str, str]) -> None:
        self._logs = logs
        self._manager = Manager(logs)
        self._asked = False
        for name, command in parse_procfile(procfile.read_text()).processes.items():
            self._manager.add_process(
                name, command, env={**env, "PYTHONUNBUFFERED": "1"}, cwd=procfile.parent
            )

    def run(self) -> None:
        """Start all, and return when all have ended. Main thread only: it takes the signals."""
        self._manager.loop()

    def stop(self) -> None:
        """Ask all to end; from any thread, repeatedly."""
        if not self._logs.first_end:
            self._asked = True
        self._manager.terminate()

    @property
    def signalled(self) -> int | None:
        """The shell's code for the signal that ended the run, or None."""
        code: int | None = self._manager.returncode
        return code if code in SIGNALLED else None

    def died(self) -> str:
        """Return which process ended by itself, with its last lines; empty if none did."""
        if self._asked or self.signalled is not None:
            return ""
        name = self._logs.first_end.partition(" ")[0]
        shown = "\n".join(f"    {line}" for line in self._logs.tail(name))
        return f"{self._logs.first_end} by itself. Its last lines, all in {self._logs.path(name)}:\n{shown}"
