"""What the terminal shows: steps, the token stream, and warnings that wait until it is over."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class Console:
    """A terminal shared by threads: a stream of tokens is never interleaved with other lines."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._tty = self._out.isatty()
        self._lock = threading.RLock()
        self._streaming = False
        self._held: list[str] = []

    def title(self, text: str) -> None:
        """Write a heading."""
        self._line(f"\n\033[1m{text}\033[0m" if self._tty else f"\n{text}")

    def step(self, name: str, text: str) -> None:
        """Write one named fact."""
        self._line(f"  {name:<10} {text}")

    def plain(self, text: str = "") -> None:
        """Write lines as they are."""
        self._line(text)

    def passing(self, text: str) -> None:
        """Show a line that the next one replaces; nothing where there is no terminal."""
        with self._lock:
            if self._tty and not self._streaming:
                self._write(f"\r\033[K\033[2m  {text}\033[0m\r")

    def aside(self, text: str) -> None:
        """Write a line from elsewhere, such as a warning in a log; held back during `streaming`."""
        with self._lock:
            if self._streaming:
                self._held.append(text)
            else:
                self._line(text)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Keep the terminal for `token`."""
        with self._lock:
            self._streaming = True
        try:
            yield
        finally:
            with self._lock:
                self._streaming = False
                self._write("\n")
                for text in self._held:
                    self._line(text)
                self._held.clear()

    def token(self, text: str) -> None:
        """Write some of the stream, at once."""
        with self._lock:
            self._write(text)

    def _line(self, text: str) -> None:
        with self._lock:
            self._write(("\r\033[K" if self._tty else "") + text + "\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
