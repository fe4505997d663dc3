"""The database file: how it is opened, locked, laid out and brought up to date.

Owns pragmas, tables and migrations. One process opens the file at a time: the connection keeps
SQLite's exclusive lock until it is closed, and the operating system drops it with the process.
SQLite's WAL-reset corruption bug (3.7.0 to 3.51.2) needs two connections; here there is one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from service.domain.errors import StoreUnavailable

APPLICATION_ID = 0x7461696C
"""Marks the file as ours ("tail"), so that another program's database is never touched."""
PAGE_BYTES = 2048
"""Each open log dirties a page of its own in each step: half of SQLite's default is half the writing."""
CHECKPOINT_PAGES = 8192
"""The log is copied into the database each 16 MiB: about one fsync pause in 60 steps of 64 streams."""
WAL_BYTES = 64 * 1024 * 1024
"""The log file is cut back to this after a burst."""
CACHED_STATEMENTS = 64

_VERSION_1 = (
    """CREATE TABLE predictions (
        pk INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        model TEXT NOT NULL,
        request_id TEXT NOT NULL,
        body_hash BLOB NOT NULL,
        created_us INTEGER NOT NULL,
        deadline_us INTEGER,
        attached INTEGER NOT NULL,
        status TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        last_sequence INTEGER NOT NULL,
        outcome BLOB NOT NULL,
        completed_us INTEGER,
        data_removed INTEGER NOT NULL DEFAULT 0
    )""",
    # The big, immutable part is a table of its own: an update rewrites its whole row.
    """CREATE TABLE inputs (
        prediction INTEGER PRIMARY KEY,
        request BLOB,
        labels BLOB NOT NULL,
        -- The labels that stay when the data goes; NULL where all do.
        lasting_labels BLOB,
        webhook BLOB,
        webhook_context TEXT
    )""",
    """CREATE TABLE events (
        prediction INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        payload BLOB NOT NULL,
        PRIMARY KEY (prediction, sequence)
    ) WITHOUT ROWID""",
    "CREATE INDEX by_request_id ON predictions (owner, request_id) WHERE request_id != ''",
    "CREATE INDEX by_owner ON predictions (owner, created_us, id) WHERE owner != ''",
    "CREATE INDEX by_creation ON predictions (created_us, id)",
    "CREATE INDEX unfinished ON predictions (created_us, id) WHERE completed_us IS NULL",
    "CREATE INDEX by_completion ON predictions (completed_us) WHERE completed_us IS NOT NULL",
    """CREATE INDEX with_data ON predictions (completed_us)
        WHERE completed_us IS NOT NULL AND data_removed = 0""",
    """CREATE TABLE deliveries (
        pk INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        prediction TEXT NOT NULL,
        event TEXT NOT NULL,
        url TEXT NOT NULL,
        created_us INTEGER NOT NULL,
        next_us INTEGER,
        attempts INTEGER NOT NULL,
        delivered INTEGER NOT NULL,
        given_up INTEGER NOT NULL,
        last_status INTEGER NOT NULL,
        last_error TEXT NOT NULL,
        attempted_us INTEGER
    )""",
    # As with `inputs`: each attempt rewrites its delivery's row, and the body never changes.
    "CREATE TABLE bodies (delivery INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE INDEX due ON deliveries (next_us) WHERE next_us IS NOT NULL",
    "CREATE INDEX of_prediction ON deliveries (prediction)",
    "CREATE INDEX by_failure ON deliveries (created_us) WHERE given_up = 1",
    "CREATE INDEX settled ON deliveries (created_us) WHERE next_us IS NULL",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

_VERSION_2 = (
    # What signs a call is its owner's, and a call may outlive its prediction's record.
    "ALTER TABLE deliveries ADD COLUMN owner TEXT NOT NULL DEFAULT ''",
    "UPDATE deliveries SET owner = coalesce((SELECT owner FROM predictions WHERE id = prediction), '')",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_VERSION_1, _VERSION_2)
"""Statements that lead from each schema version to the next; the file's version counts them."""


def open_database(path: Path, *, max_bytes: int | None = None) -> sqlite3.Connection:
    """Open, lock and migrate the database at `path`; create it with mode 0600 if absent.

    Blocks, and binds the connection to the calling thread. `max_bytes` bounds the database file,
    its write-ahead log not included.

    Raises:
        StoreUnavailable: another process holds the file, a newer version wrote it, it is not ours,
            or it cannot be opened or written. The message is for operators.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            path, timeout=0, isolation_level=None, cached_statements=CACHED_STATEMENTS
        )
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailable("the store file cannot be opened", detail=f"{path}: {error}") from error
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        version = _check_version(connection)
        _configure(connection, max_bytes)
        _migrate(connection, version)
    except StoreUnavailable as refusal:
        connection.close()
        refusal.detail = str(path)
        raise
    except sqlite3.Error as error:
        connection.close()
        raise StoreUnavailable(_describe(error), detail=f"{path}: {error}") from error
    return connection


def _configure(connection: sqlite3.Connection, max_bytes: int | None) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnavailable("the store's file system takes no write-ahead log")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
    # What retention removes is overwritten, not just unlinked.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    if max_bytes is not None:
        (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
        connection.execute(f"PRAGMA max_page_count = {max(max_bytes // page_bytes, 1)}")


def _check_version(connection: sqlite3.Connection) -> int:
    """Return the file's schema version, having changed nothing; 0 for an empty file."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application_id != APPLICATION_ID and (objects or version or application_id):
        raise StoreUnavailable("the store file is another program's database")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"the store has schema version {version}, written by a newer Tailrace; "
            f"this one knows up to {len(MIGRATIONS)}"
        )
    return int(version)


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    for number, statements in enumerate(MIGRATIONS[version:], version + 1):
        connection.execute("BEGIN IMMEDIATE")
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")


def _describe(error: sqlite3.Error) -> str:
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
        case sqlite3.SQLITE_BUSY:
            return "the store is in use by another process"
        case sqlite3.SQLITE_NOTADB:
            return "the store file is not a database"
        case _:
            return "the store file cannot be opened"
