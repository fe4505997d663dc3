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
from pathlib import Path
from types import ModuleType

import torch
from torch.utils import cpp_extension

_CPP = Path(__file__).parent / "cpp"
_KEPT = Path(__file__).parents[3] / "var" / "exllamav2-cpu"
_HOST_SOURCES = ("cpp/sampling.cpp", "cpp/sampling_avx2.cpp", "cpp/generator.cpp", "cpp/profiling.cpp")


class NoCompiler(Exception):
    """There is no C++ compiler to build the extension with."""


def build() -> ModuleType:
    """Return the compiled module, from the cache where it is there. Raises NoCompiler."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "c++") if name):
        raise NoCompiler(
            "building exllamav2's host code needs a C++ compiler: install g++ (Debian, Ubuntu: "
            "apt-get install g++), or name one in CXX"
        )
    folder = _KEPT / _key()
    folder.mkdir(parents=True, exist_ok=True)
    # torch looks for the ninja of the virtual environment on PATH.
    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    )
    sources = _package() / "exllamav2_ext"
    module: ModuleType = cpp_extension.load(
        name="exllamav2_ext",
        build_directory=str(folder),
        with_cuda=False,
        sources=[str(_CPP / "host_bindings.cpp"), *(str(sources / name) for name in _HOST_SOURCES)],
        extra_include_paths=[str(_CPP), str(sources)],
        extra_cflags=["-Ofast"],  # as the wheel's own build
    )
    return module


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
