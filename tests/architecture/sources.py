"""The repository's own files, for the tests of its rules."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("service", "edge", "protos", "clients", "docs", "benchmarks", "tests")


def python_files(*folders: str) -> list[Path]:
    """Return the hand-written Python files below `folders` (all of ours when none is named)."""
    found = [path for folder in folders or CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "_pb2" not in path.name and "node_modules" not in path.parts]


def name(path: Path) -> str:
    """Return the path as it is written in docs and test ids."""
    return path.relative_to(ROOT).as_posix()


def typescript_files(folder: str) -> list[Path]:
    """Return the TypeScript below `folder`."""
    found = sorted((ROOT / folder).rglob("*.ts"))
    return [path for path in found if not {"node_modules", "dist"} & {*path.parts}]
