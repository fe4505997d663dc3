"""Owns the file of grants: reading it, changing it, and noticing that it was changed.

The file is replaced as a whole and written with mode 0600; writers take turns by a lock file beside
it. A running edge looks at it again when a request comes and the last look is `LOOK_EVERY_S` ago, so
a token that was revoked is refused within that time, without a restart; one that was made counts at once.

What a running edge does when the file is bad: gone means that no token is good any more; unreadable
or malformed means that the last good state stays, with an error in the log, since a slip of an editor
must not lock everybody out.
"""

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from edge.auth.grants import Grant, GrantsError, GrantTable, decode_grants, encode_grants, hash_token
from edge.auth.token_format import (
    ID_ALPHABET,
    ID_CHARS,
    SECRET_ALPHABET,
    SECRET_CHARS,
    ApiToken,
)
from edge.http.middleware import Logger

LOOK_EVERY_S: Final = 0.5
"""One `stat` in so long, at most."""

MAX_FILE_BYTES: Final = 16 * 1024 * 1024

_Signature = tuple[int, int, int]


def new_token() -> ApiToken:
    """Return a token of fresh random characters."""
    return ApiToken(_random(ID_ALPHABET, ID_CHARS), _random(SECRET_ALPHABET, SECRET_CHARS))


def read_grants(path: Path) -> GrantTable:
    """Return what the file grants. Raises GrantsError; FileNotFoundError when there is none."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise GrantsError(f"{path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise GrantsError(f"{path} can be read by others; chmod it to 600")
    if len(text) > MAX_FILE_BYTES:
        raise GrantsError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return decode_grants(text)
    except GrantsError as error:
        raise GrantsError(f"{path}: {error}") from None


def add_grant(path: Path, make: Callable[[str, str], Grant]) -> tuple[ApiToken, Grant]:
    """Add what `make` returns for a fresh id and hash; return the token, which is kept nowhere.

    Raises GrantsError.
    """
    with _changing(path):
        table = _read_or_empty(path)
        token = new_token()
        grant = make(token.id, hash_token(token))
        _replace(path, GrantTable((*table.grants, grant)))
    return token, grant


def remove_grant(path: Path, token_id: str) -> Grant | None:
    """Take the grant of this id away and return it, None if there is none. Raises GrantsError."""
    with _changing(path):
        table = _read_or_empty(path)
        gone = next((grant for grant in table.grants if grant.id == token_id), None)
        if gone is not None:
            _replace(path, GrantTable(grant for grant in table.grants if grant is not gone))
    return gone


class GrantFile:
    """The grants of a file as they stand, for a running edge. Made in the loop that uses it."""

    def __init__(self, path: Path, log: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """Reads the file once, blocking. Raises GrantsError when that fails or there is no file."""
        self._path = path
        self._log = log
        self._clock = clock
        self._lock = anyio.Lock()
        self._signature = _look(path)
        if self._signature is None:
            raise GrantsError(f"there is no file {path}; make a token with `make token`")
        self._table = read_grants(path)
        self._looked_s = clock()

    async def find(self, token: ApiToken, now: datetime) -> Grant | None:
        """Return what `token` grants, by a state at most `LOOK_EVERY_S` old; None for nothing.

        A token that is not found is looked for again in the file as it is now: it may be new.
        """
        await self._look_again(LOOK_EVERY_S)
        grant = self._table.find(token, now)
        if grant is None and await self._look_again(0):
            grant = self._table.find(token, now)
        return grant

    async def _look_again(self, age_s: float) -> bool:
        """Look at the file unless that was done since `age_s` ago; return whether anything changed."""
        wanted_s = self._clock() - age_s
        if self._looked_s > wanted_s:
            return False
        async with self._lock:  # who waits here is judged by the new state too
            before = self._table
            if self._looked_s <= wanted_s:
                began_s = self._clock()
                await anyio.to_thread.run_sync(self._reload)
                self._looked_s = began_s
        return self._table is not before

    def _reload(self) -> None:
        signature = _look(self._path)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            self._table = GrantTable() if signature is None else read_grants(self._path)
        except FileNotFoundError:
            self._table, self._signature = GrantTable(), None
        except GrantsError as error:
            self._log.error("tokens_file_unreadable", reason=str(error))
            return
        self._log.info("tokens_read", count=len(self._table.grants))


def _look(path: Path) -> _Signature | None:
    """Return what changes with the file, None when it is not there."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return (0, 0, 0)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_or_empty(path: Path) -> GrantTable:
    try:
        return read_grants(path)
    except FileNotFoundError:
        return GrantTable()


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Hold the lock that all who change the file take."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GrantsError(f"{path}.lock: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, table: GrantTable) -> None:
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(encode_grants(table))
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise GrantsError(f"{path}: {error.strerror}") from error


def _random(alphabet: str, count: int) -> str:
    return "".join(secrets.choice(alphabet) for _ in range(count))
