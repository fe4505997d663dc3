"""Owns the file of the secret that signs stream URLs: read, or made once with random bytes.

Edges that start together on one file end up with the same secret: it is written aside and linked
into place, which only the first can do.
"""

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from edge.settings import Settings, SettingsError

SECRET_BYTES: Final = 32


def load_stream_secret(settings: Settings) -> bytes:
    """Return the secret; makes the file when it is missing. Raises SettingsError."""
    given = settings.stream_secret.get_secret_value()
    if given:
        return given.encode()
    path = settings.stream_secret_file
    try:
        if not path.exists():
            _create(path)
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"EDGE_STREAM_SECRET_FILE: {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError(f"EDGE_STREAM_SECRET_FILE: {path} can be read by others; chmod it to 600")
    if len(secret) < 16:
        raise SettingsError(f"EDGE_STREAM_SECRET_FILE: {path} holds less than 16 bytes")
    return secret


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
    finally:
        aside.unlink()
