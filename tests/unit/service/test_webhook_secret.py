"""The secret's file: made once, for its owner alone, and never with a secret in an error."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.domain.webhook import secret_key
from service.webhook_secret import SecretFileError, load_secrets

KEY = secret_key(b"k" * 32)


def test_a_missing_file_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "secret"
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: load_secrets(path), range(16)))
    assert len(found) == 1 and len(found.pop()[0]) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("text", [b"", b"nonsense", b"whsec_", KEY.encode()[:20], b"\xff" + KEY.encode()])
def test_a_file_without_a_secret_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text)
    path.chmod(0o600)
    with pytest.raises(SecretFileError, match="SERVICE_WEBHOOK_SECRET_FILE") as caught:
        load_secrets(path)
    assert KEY[6:18] not in str(caught.value)


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecretFileError):
        load_secrets(tmp_path / "file" / "secret")
