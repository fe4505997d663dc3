"""The file of the secrets that sign webhooks: read, or made once with random bytes.

Services that start together on one file end up with the same secret: it is written aside and linked
into place, which only the first can do.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from service.domain.webhook import BadSecret, read_secret_keys, secret_key

SECRET_BYTES = 32


class SecretFileError(Exception):
    """The file cannot be used; the text says why, for operators."""


def load_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets, the current one first; makes the file when it is missing.

    Raises:
        SecretFileError: it cannot be read or made, others can read it, or it holds no secret.
    """
    try:
        if not path.exists():
            _create(path)
        mode = path.stat().st_mode
        lines = path.read_text("ascii").splitlines()
    except OSError as error:
        raise SecretFileError(f"SERVICE_WEBHOOK_SECRET_FILE: {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SecretFileError(f"SERVICE_WEBHOOK_SECRET_FILE: {path} is no ASCII text") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SecretFileError(f"SERVICE_WEBHOOK_SECRET_FILE: {path} can be read by others; chmod it to 600")
    try:
        return read_secret_keys(lines)
    except BadSecret as error:
        raise SecretFileError(f"SERVICE_WEBHOOK_SECRET_FILE: {path}: {error}") from None


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secret_key(secrets.token_bytes(SECRET_BYTES)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
    finally:
        aside.unlink()
