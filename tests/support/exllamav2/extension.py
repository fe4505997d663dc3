"""The host half of `exllamav2_ext`, compiled from the installed wheel's sources.

Built once and kept by versions: `var/exllamav2-cpu/<key>/`. About half a minute of one core.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

_NAME = "exllamav2_ext"
_CPP = Path(__file__).parent / "cpp"
_KEPT = Path(__file__).parents[3] / "var" / "exllamav2-cpu"
_HOST_SOURCES = ("cpp/sampling.cpp", "cpp/sampling_avx2.cpp", "cpp/generator.cpp", "cpp/profiling.cpp")


class NoCompiler(Exception):
    """There is no C++ compiler to build the extension with."""


def build() -> ModuleType:
    """Return the compiled module, from the cache where it is there. Raises NoCompiler."""
    kept = _KEPT / _key() / f"{_NAME}.so"
    if not kept.exists():
        _compile(kept)
    spec = importlib.util.spec_from_file_location(_NAME, kept)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(target: Path) -> None:
    """Compile in a folder of its own: torch's lock on a folder outlives a process that was killed."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "c++") if name):
        raise NoCompiler(
            "building exllamav2's host code needs a C++ compiler: install g++ (Debian, Ubuntu: "
            "apt-get install g++), or name one in CXX"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    # torch looks for the ninja of the virtual environment on PATH.
    tools = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([tools, os.environ.get("PATH", os.defpath)])
    sources = _package() / "exllamav2_ext"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        cpp_extension.load(
            name=_NAME,
            build_directory=folder,
            with_cuda=False,
            sources=[str(_CPP / "host_bindings.cpp"), *(str(sources / name) for name in _HOST_SOURCES)],
            extra_include_paths=[str(_CPP), str(sources)],
            extra_cflags=["-Ofast"],  # as the wheel's own build
            is_python_module=False,
            is_standalone=False,
        )
        (Path(folder) / target.name).replace(target)


def _package() -> Path:
    found = importlib.util.find_spec("exllamav2")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("exllamav2 is not installed: make test-exllamav2 installs it")
    return Path(next(iter(found.submodule_search_locations)))


def _key() -> str:
    digest = hashlib.sha256()
    for path in sorted(_CPP.rglob("*.*")):
        digest.update(path.read_bytes())
    parts = (
        "exllamav2-" + importlib.metadata.version("exllamav2"),
        "torch-" + torch.__version__,
        f"py{sys.version_info[0]}{sys.version_info[1]}",
        platform.machine(),
        digest.hexdigest()[:8],
    )
    return "-".join(parts)
