"""SqliteStore when things go wrong: killed, starved, locked out, canceled, misread."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio import wait_all_tasks_blocked

from service.adapters.stores import sqlite_schema
from service.adapters.stores.sqlite import SqliteStore
from service.adapters.stores.sqlite_codec import Outcome, encode_labels, encode_outcome
from service.adapters.stores.sqlite_tables import SqliteTables
from service.adapters.stores.sqlite_thread import SqliteThread
from service.domain.errors import StoreUnavailable
from service.domain.request import GenerationRequest, TextPrompt
from service.ports.store import Created
from tests.contract.stores.samples import BOUND_S, HASH, NOW, SECOND, bounded, finished, new, output, started

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parents[3]
ROUNDS = 20


def child(verb: str, path: Path, name: str = "p") -> subprocess.Popen[str]:
    """Start `faulty_writer` in a process of its own."""
    command = [sys.executable, "-m", "tests.contract.stores.faulty_writer", verb, str(path), name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def held(store: SqliteStore, tasks: anyio.abc.TaskGroup) -> Iterator[None]:
    """Keep the store's thread busy, so that what is called meanwhile waits together."""
    release = threading.Event()
    tasks.start_soon(lambda: store._thread.call(lambda tables: release.wait(BOUND_S), writes=False))
    try:
        yield
    finally:
        release.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_1_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    choices = random.Random(7)
    acknowledged: dict[str, int] = {}
    for turn in range(ROUNDS):
        with child("write", path, f"r{turn}") as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(choices.randrange(1, 200))]
            process.kill()
            lines += process.stdout.readlines()
        for line in lines:
            if line.endswith("\n"):
                name, last = line.split()
                acknowledged[name] = int(last)
    anyio.run(_check_acknowledged, path, acknowledged)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def _check_acknowledged(path: Path, acknowledged: dict[str, int]) -> None:
    async with SqliteStore(path) as store:
        for name, last in acknowledged.items():
            record = await store.find(name)
            assert record is not None
            assert record.last_sequence >= last
            log = await store.read(name, 0, 100)
            assert [entry.sequence for entry in log] == list(range(1, record.last_sequence + 1))
            outputs = [entry.event for entry in log[2:10:2]]
            assert outputs == [output(f"{name} {step}") for step in range(len(outputs))]


def test_6_a_limit_on_file_sizes_refuses_and_loses_nothing(path: Path) -> None:
    with child("starve", path) as process:
        said, _ = process.communicate(timeout=BOUND_S)
    refused, recovered = said.splitlines()
    taken = int(refused.removeprefix("refused after "))
    assert taken > 10
    assert recovered == f"recovered {taken + 50}"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@bounded
async def test_6_a_full_store_refuses_and_takes_again_when_it_has_room(path: Path) -> None:
    big = GenerationRequest(TextPrompt("x" * 20_000))
    async with SqliteStore(path, max_bytes=600_000) as store:
        writer = await started(store, "open")
        kept = 0
        with pytest.raises(StoreUnavailable):
            for kept in range(1000):
                await finished(store, f"p{kept}", request=big)
        records = (await store.list(limit=1000)).predictions
        assert len(records) > kept > 10
        with pytest.raises(StoreUnavailable):
            await store.append([writer.append(*[output("y" * 5000) for _ in range(50)])])
        assert len(await store.read("open", 0, 100)) == 2
        assert (await store.list(limit=1000)).predictions == records
        assert await store.expire(NOW + SECOND, NOW) >= kept
        assert (await store.create(*new("again", request=big), HASH)).fresh


@bounded
async def test_6_a_call_that_fails_takes_no_other_with_it(path: Path) -> None:
    refused: list[str] = []
    small = GenerationRequest(TextPrompt("x"))
    huge = GenerationRequest(TextPrompt("x" * 1_000_000))

    async def create(name: str, request: GenerationRequest) -> None:
        try:
            await store.create(*new(name, request=request), HASH)
        except StoreUnavailable:
            refused.append(name)

    async with SqliteStore(path, max_bytes=500_000) as store:
        async with anyio.create_task_group() as tasks:
            with held(store, tasks):
                await wait_all_tasks_blocked()
                tasks.start_soon(create, "before", small)
                tasks.start_soon(create, "huge", huge)
                tasks.start_soon(create, "after", small)
                await wait_all_tasks_blocked()
        assert refused == ["huge"]
        assert {record.id for record in await store.unfinished()} == {"before", "after"}
        assert len(await store.read("after", 0, 10)) == 1


@bounded
async def test_a_canceled_caller_leaves_its_call_whole(path: Path) -> None:
    async with SqliteStore(path) as store:
        async with anyio.create_task_group() as tasks:
            with held(store, tasks):
                await wait_all_tasks_blocked()
                async with anyio.create_task_group() as callers:
                    callers.start_soon(lambda: store.create(*new("p"), HASH))
                    await wait_all_tasks_blocked()
                    callers.cancel_scope.cancel()
                assert callers.cancel_scope.cancelled_caught
        prediction, accepted = new("p")
        assert await store.find("p") == prediction
        assert await store.read("p", 0, 10) == (accepted,)


@bounded
async def test_a_caller_canceled_while_it_waits_for_room_changes_nothing(path: Path) -> None:
    async with SqliteStore(path, max_waiting=1) as store:
        async with anyio.create_task_group() as tasks:
            with held(store, tasks):
                await wait_all_tasks_blocked()
                async with anyio.create_task_group() as callers:
                    callers.start_soon(lambda: store.create(*new("p"), HASH))
                    await wait_all_tasks_blocked()
                    callers.cancel_scope.cancel()
        assert await store.find("p") is None


@bounded
async def test_many_more_callers_than_room_are_all_served(path: Path) -> None:
    answers: list[Created] = []

    async def create(number: int) -> None:
        answers.append(await store.create(*new(f"p{number}"), HASH))

    async with SqliteStore(path, max_waiting=2) as store:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(create, number)
        assert len(answers) == len(await store.unfinished()) == 50


@bounded
async def test_closing_finishes_what_was_accepted_and_refuses_more(path: Path) -> None:
    answers: list[bool] = []

    async def create(number: int) -> None:
        answers.append((await store.create(*new(f"p{number}"), HASH)).fresh)

    async with anyio.create_task_group() as tasks:
        async with SqliteStore(path) as store:
            with held(store, tasks):
                for number in range(300):
                    tasks.start_soon(create, number)
                await wait_all_tasks_blocked()
    assert answers == [True] * 300
    with pytest.raises(StoreUnavailable):
        await store.find("p1")
    async with SqliteStore(path) as store:
        assert len(await store.unfinished()) == 300


@bounded
async def test_a_second_process_is_refused(path: Path) -> None:
    async with SqliteStore(path) as store:
        await started(store, "p")
        with child("open", path) as process:
            said, _ = process.communicate(timeout=BOUND_S)
        assert said == "the store is in use by another process\n"
        with pytest.raises(StoreUnavailable, match="in use"):
            async with SqliteStore(path):
                pass
        assert await store.find("p") is not None
    with child("open", path) as process:
        assert process.communicate(timeout=BOUND_S)[0] == "opened\n"


@bounded
async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    async with SqliteStore(path):
        pass
    newer = len(sqlite_schema.MIGRATIONS) + 1
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {newer}")
    with pytest.raises(StoreUnavailable, match=f"schema version {newer}"):
        async with SqliteStore(path):
            pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (newer,)


@bounded
async def test_another_programs_file_is_refused_and_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match="another program"):
        async with SqliteStore(path):
            pass
    assert path.read_bytes() == before
    path.write_bytes(b"not a database at all" * 200)
    with pytest.raises(StoreUnavailable, match="not a database"):
        async with SqliteStore(path):
            pass
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        async with SqliteStore(path / "missing" / "store.db"):
            pass


@bounded
async def test_only_the_owner_can_read_its_files(path: Path) -> None:
    async with SqliteStore(path) as store:
        await started(store, "p")
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600}


@bounded
async def test_removed_data_is_not_in_the_files(path: Path) -> None:
    async with SqliteStore(path) as store:
        await finished(store, "p", request=GenerationRequest(TextPrompt("the secret prompt")))
        await store.expire(NOW + SECOND, NOW)
    data = path.read_bytes()
    assert b"secret" not in data
    assert b"all of it" not in data


@bounded
async def test_a_bug_on_the_thread_leaves_nobody_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def broken(tables: SqliteTables) -> None:
        raise KeyError("a bug")

    async with SqliteThread(lambda: sqlite_schema.open_database(path), max_waiting=9) as thread:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await thread.call(broken, writes=True)
    for left in threading.enumerate():
        if left.name == "sqlite-store":
            left.join()
    assert [report.exc_type for report in reported] == [KeyError]


@bounded
async def test_a_file_of_the_first_version_is_brought_up_to_date(
    path: Path,
) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in sqlite_schema.MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute("PRAGMA user_version = 1")
        connection.execute(
            "INSERT INTO predictions"
            " VALUES (1, 'old', 'm', 'r', ?, 0, NULL, 0, 'starting', 1, 1, ?, NULL, 0)",
            (HASH, encode_outcome(Outcome(None, None, 0, 0, 0))),
        )
        connection.execute("INSERT INTO inputs VALUES (1, NULL, ?)", (encode_labels((("a", "b"),)),))
        connection.commit()
    async with SqliteStore(path) as store:
        found = await store.find("old")
        assert found is not None and (found.owner, found.labels) == ("", (("a", "b"),))
        assert (await store.list(limit=1)).predictions == (found,)
        again = await store.create(*new("new", found.created_at, request_id="r"), HASH)
        assert (again.prediction.id, again.fresh) == ("old", False)
