"""What a GGUF file says of its model, read without loading it.

Owns the header's key-value pairs (GGUF specification, version 2 and 3, little-endian). It reads
no tensor. The library gives no access to these values that does not go through a running server.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
"""GGUF value types by number; 8 is a string and 9 an array."""
_STRING, _ARRAY = 8, 9
_MAX_PAIRS = 65_536
_MAX_ITEMS = 16_777_216

Value = int | float | bool | bytes | list[int] | list[float] | list[bytes]


class GgufError(Exception):
    """The file is no GGUF file that can be read; the text says why."""


def read_metadata(path: Path) -> dict[str, Value]:
    """Return the file's key-value pairs; strings are bytes. Raises GgufError and OSError."""
    with path.open("rb") as file:
        try:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GgufError("the file is empty") from None
        with view:
            try:
                return _Reader(view).pairs()
            except (struct.error, IndexError, UnicodeDecodeError):
                raise GgufError("the file is cut off or damaged") from None


class _Reader:
    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = 0

    def pairs(self) -> dict[str, Value]:
        if self._bytes(4) != b"GGUF":
            raise GgufError("the file does not begin as a GGUF file")
        version = self._int("<I")
        if version not in {2, 3}:
            raise GgufError(f"GGUF version {version} is not known")
        self._int("<Q")
        count = self._int("<Q")
        if count > _MAX_PAIRS:
            raise GgufError("the file is damaged")
        found: dict[str, Value] = {}
        for _ in range(count):
            key = self._string().decode("utf-8")
            found[key] = self._value(self._int("<I"))
        return found

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            value: int | float | bool = self._unpack(_SCALARS, kind)
            return value
        item, count = self._int("<I"), self._int("<Q")
        if count > _MAX_ITEMS:
            raise GgufError("the file is damaged")
        if item == _STRING:
            return [self._string() for _ in range(count)]
        if item not in _SCALARS:
            raise GgufError(f"GGUF array items of type {item} are not known")
        code = _SCALARS[item].lstrip("<")
        layout = struct.Struct(f"<{count}{code}")
        values = list(layout.unpack(self._bytes(layout.size)))
        return values

    def _unpack(self, kinds: dict[int, str], kind: int) -> int | float | bool:
        if kind not in kinds:
            raise GgufError(f"GGUF value type {kind} is not known")
        layout = struct.Struct(kinds[kind])
        value: int | float | bool = layout.unpack(self._bytes(layout.size))[0]
        return value

    def _int(self, layout: str) -> int:
        value: int = struct.unpack(layout, self._bytes(struct.calcsize(layout)))[0]
        return value

    def _string(self) -> bytes:
        return self._bytes(self._int("<Q"))

    def _bytes(self, count: int) -> bytes:
        start, self._at = self._at, self._at + count
        if self._at > len(self._view):
            raise IndexError
        return self._view[start : self._at]
