"""Owns the files that pages are made of: read once from the package, served from memory.

All scripts and styles are under one folder named by the hash of everything in it, so modules import
each other by relative paths, and a browser may keep each for ever. A folder of another hash is that
of another version: it gets today's file, which must not be kept. During a rolling restart a page of
one edge so finds its scripts on any other.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

PACKAGE: Final = "edge.web"

_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One file as it is sent."""

    body: bytes

    content_type: str

    etag: str
    """Strong, with its quotes (RFC 9110 §8.8.3)."""


@dataclass(frozen=True, slots=True)
class Assets:
    """All files of the pages."""

    version: str
    """Hash of all of them, as it stands in their URLs."""

    by_name: Mapping[str, Asset]

    templates: Mapping[str, str]
    """Shells of pages, by name without ending."""

    def path(self, name: str) -> str:
        """Return the path of a file, below whatever prefix. Raises KeyError for one that is not there."""
        self.by_name[name]
        return f"/assets/{self.version}/{name}"


def load_assets() -> Assets:
    """Return what the package holds."""
    root = files(PACKAGE)
    by_name = {
        path.name: _asset(path)
        for path in sorted(root.joinpath("static").iterdir(), key=lambda path: path.name)
        if path.name.rpartition(".")[2] in _TYPES
    }
    whole = hashlib.sha256()
    for name, asset in by_name.items():
        whole.update(f"{name}\0{asset.etag}\0".encode())
    templates = {
        path.name.removesuffix(".html"): path.read_text("utf-8")
        for path in root.joinpath("templates").iterdir()
        if path.name.endswith(".html")
    }
    return Assets(whole.hexdigest()[:_DIGITS], by_name, templates)


def _asset(path: Traversable) -> Asset:
    body = path.read_bytes()
    digest = hashlib.sha256(body).hexdigest()[:_DIGITS]
    return Asset(body, _TYPES[path.name.rpartition(".")[2]], f'"{digest}"')
