"""The one thread that holds the database: a queue of calls, committed in groups.

Owns threads, transactions and the way back to the event loop. Calls that wait together run in one
transaction and return after its commit, with one wake-up of the loop for all of them. If SQLite
fails anywhere in a group, the group is undone and each of its calls runs again in a transaction of
its own, so a call that cannot be carried out takes no other with it. (No savepoints: a call that
raises anything else has written nothing, see `SqliteTables`.) Calls run in the order they came,
reads and writes alike, so neither starves the other.

An error that is neither the domain's nor SQLite's nor a ValueError is a bug here: the thread ends
with its traceback, and every call from then on raises StoreUnavailable.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, Self, TypeVar, cast

import anyio

from service.adapters.stores.sqlite_tables import SqliteTables
from service.domain.errors import StoreUnavailable, TailraceError

T = TypeVar("T")

MAX_GROUP = 256
"""Calls in one transaction; more wait for the next."""
CLOSE_TIMEOUT_S = 30.0
"""Closing waits so long for accepted calls and the last checkpoint, then leaves them to the thread."""


class _Pending(Protocol):
    """A call without its result type."""

    writes: bool

    def run(self, tables: SqliteTables) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def settle(self) -> None: ...


class _Call(Generic[T]):
    """One call: run on the thread, settled on the loop."""

    __slots__ = ("_error", "_future", "_result", "_work", "writes")

    def __init__(self, work: Callable[[SqliteTables], T], future: asyncio.Future[T], writes: bool) -> None:
        self.writes = writes
        self._work = work
        self._future = future
        self._result: T | None = None
        self._error: Exception | None = None

    def run(self, tables: SqliteTables) -> None:
        self._error = None
        try:
            self._result = self._work(tables)
        except (TailraceError, ValueError) as error:
            self._error = error

    def fail(self, error: Exception) -> None:
        self._error = error

    def settle(self) -> None:
        if self._future.done():
            return  # its caller was canceled; what it did stands
        if self._error is not None:
            self._future.set_exception(self._error)
        else:
            self._future.set_result(cast("T", self._result))


class SqliteThread:
    """Run calls against a database on a thread of its own, for the event loop that opened it."""

    def __init__(self, open_database: Callable[[], sqlite3.Connection], *, max_waiting: int) -> None:
        """Hold at most `max_waiting` calls, running ones included; when full, callers wait."""
        self._open_database = open_database
        self._max_waiting = max_waiting
        # Bounded by `_room`; None asks the thread to end.
        self._calls: SimpleQueue[_Pending | None] = SimpleQueue()
        self._running: Sequence[_Pending] = ()
        self._closed = True

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._room = anyio.Semaphore(self._max_waiting, fast_acquire=True)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended = anyio.Event()
        threading.Thread(target=self._run, name="sqlite-store", daemon=True).start()
        try:
            await self._started
            self._closed = False
        finally:
            if self._closed:
                self._calls.put(None)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closed = True
        self._calls.put(None)
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._ended.wait()

    async def call(self, work: Callable[[SqliteTables], T], *, writes: bool) -> T:
        """Return what `work` returns, once it is committed.

        A canceled caller leaves a call that was queued to run to its end. `work` runs again if the
        group it was in is undone.

        Raises:
            StoreUnavailable: SQLite cannot carry it out now, or the store is closed.
        """
        await self._room.acquire()
        if self._closed:
            self._room.release()
            raise StoreUnavailable("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(_Call(work, future, writes))
        return await future

    # The event loop's side.

    def _settle(self, calls: Sequence[_Pending]) -> None:
        for call in calls:
            self._room.release()
            call.settle()

    def _report_start(self, refusal: StoreUnavailable | None) -> None:
        if self._started.done():
            return
        if refusal is None:
            self._started.set_result(None)
        else:
            self._started.set_exception(refusal)

    def _report_end(self) -> None:
        self._closed = True
        left = list(self._running)
        with contextlib.suppress(Empty):
            while True:
                call = self._calls.get_nowait()
                if call is not None:
                    left.append(call)
        for call in left:
            call.fail(StoreUnavailable("the store has stopped"))
        self._settle(left)
        self._report_start(StoreUnavailable("the store has stopped"))
        self._ended.set()

    # The thread's side.

    def _post(self, report: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(report, *args)

    def _run(self) -> None:
        try:
            with contextlib.closing(SqliteTables(self._open_database())) as tables:
                self._post(self._report_start, None)
                self._serve(tables)
        except StoreUnavailable as refusal:
            self._post(self._report_start, refusal)
        finally:
            self._post(self._report_end)

    def _serve(self, tables: SqliteTables) -> None:
        last = False
        while not last:
            group: list[_Pending] = []
            call = self._calls.get()
            with contextlib.suppress(Empty):
                while call is not None:
                    group.append(call)
                    if len(group) == MAX_GROUP:
                        break
                    call = self._calls.get_nowait()
            last = call is None
            self._running = group
            _commit(tables, group)
            self._running = ()
            if group:
                self._post(self._settle, group)


def _commit(tables: SqliteTables, group: Sequence[_Pending]) -> None:
    try:
        writes = any(call.writes for call in group)
        if writes:
            tables.begin()
        for call in group:
            call.run(tables)
        if writes:
            tables.commit()
    except sqlite3.Error as error:
        tables.roll_back()
        if len(group) == 1:
            group[0].fail(_refusal(error))
            return
        for call in group:
            _commit(tables, [call])


def _refusal(error: sqlite3.Error) -> Exception:
    """Return what the caller is told: a full disk or a bad one may pass, a wrong statement may not."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return error
    refusal = StoreUnavailable("the store cannot be read or written now", detail=str(error))
    refusal.__cause__ = error
    return refusal
