"""Generates the Python beside the `.proto` files, or checks that it is fresh.

`python -m protos.generate` writes; `--check` compares and exits 1 on a difference. protoc writes
imports that are absolute below `protos/`; they are rewritten to this package, so that nobody has to
change `sys.path`. The descriptors keep their own names (`tailrace/v1/…`), which is what reflection
and other languages see.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parent
IMPORT = re.compile(r"^(from|import) tailrace\.v1", re.MULTILINE)
QUALIFIED = re.compile(r"\btailrace\.v1\.(\w+_pb2)")


def generate(into: Path) -> None:
    """Write `*_pb2.py`, `*_pb2.pyi`, `*_pb2_grpc.py` and `*_pb2_grpc.pyi` below `into`."""
    sources = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("tailrace/v1/*.proto"))
    include = str(files("grpc_tools") / "_proto")
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{into}" for kind in ("mypy", "mypy_grpc")]
    scripts = Path(sys.executable).parent
    plugins = [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    if protoc.main(["protoc", f"-I{ROOT}", f"-I{include}", *plugins, *outputs, *sources]) != 0:
        raise SystemExit("protoc failed; see above")
    for path in into.rglob("*_pb2*.py*"):
        text = IMPORT.sub(r"\1 protos.tailrace.v1", path.read_text())
        if path.suffix == ".pyi":
            text = QUALIFIED.sub(r"protos.tailrace.v1.\1", text).replace("protos.protos.", "protos.")
        path.write_text(text)


def stale(fresh: Path) -> list[str]:
    """Return the generated files that differ from, or lack, their fresh form."""
    made = {p.relative_to(fresh): p.read_text() for p in fresh.rglob("*_pb2*.py*")}
    there = {p.relative_to(ROOT): p.read_text() for p in ROOT.rglob("*_pb2*.py*")}
    return sorted(str(p) for p in made.keys() | there.keys() if made.get(p) != there.get(p))


def main() -> None:
    """Generate in place, or check with `--check`."""
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        different = stale(Path(folder))
    if different:
        raise SystemExit("stale, run `make proto`: " + ", ".join(different))


if __name__ == "__main__":
    main()
