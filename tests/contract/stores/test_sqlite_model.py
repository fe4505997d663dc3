"""SqliteStore does what MemoryStore does, whatever is asked, and both keep the log's invariants."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.adapters.stores.memory import MemoryStore
from service.adapters.stores.sqlite import SqliteStore
from service.domain.errors import TailraceError
from service.domain.events import Completed, Entry, Event, FinishReason, Log, Started, Status
from service.domain.lifecycle import Prediction
from service.ports.store import Append, PredictionStore
from tests.contract.stores.samples import HASH, NOW, OTHER_HASH, Writer, new, outgoing, output

MINUTES = st.integers(min_value=0, max_value=3000)
PICK = st.integers(min_value=0, max_value=10**6)
OWNERS = st.sampled_from(["", "ann", "bob"])
FLAWS = st.sampled_from(["none"] * 6 + ["old epoch", "repeat", "gap", "unknown"])


class StoreMachine(RuleBasedStateMachine):
    """Ask both stores the same, and expect the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.memory = MemoryStore()
        self.path = Path(self.folder.name) / "store.db"
        self.count = 0

    @initialize()
    def open(self) -> None:
        self.sqlite = self.runner.run(SqliteStore(self.path).__aenter__())

    def teardown(self) -> None:
        self.runner.run(self.sqlite.__aexit__())
        self.runner.close()
        self.folder.cleanup()

    def ask(self, question: Callable[[PredictionStore], Awaitable[object]]) -> object:
        """Return the answer that both give."""
        expected = self.runner.run(_answer(question, self.memory))
        assert self.runner.run(_answer(question, self.sqlite)) == expected
        return expected

    def pick(self, number: int) -> Prediction:
        """Return the model's record of some prediction."""
        logs = list(self.memory._logs.values())
        return logs[number % len(logs)].record

    @rule(minutes=MINUTES, request_id=st.sampled_from(["", "", "r1", "r2"]), same=st.booleans(), owner=OWNERS)
    def create(self, minutes: int, request_id: str, same: bool, owner: str) -> None:
        self.count += 1
        at = NOW + timedelta(minutes=minutes)
        number = self.count if same else self.count % 9  # the second may be taken
        labels = (("data.x", "1"), ("y", "2"))[self.count % 2 :]
        prediction, accepted = new(
            f"p{number % 7}{number}", at, request_id=request_id, owner=owner, labels=labels
        )
        self.ask(lambda store: store.find_created(prediction, HASH if same else OTHER_HASH))
        self.ask(lambda store: store.create(prediction, accepted, HASH if same else OTHER_HASH))

    @precondition(lambda self: self.memory._logs)
    @rule(number=PICK)
    def claim(self, number: int) -> None:
        record = self.pick(number)
        self.ask(lambda store: store.claim(record.id))

    @precondition(lambda self: self.memory._logs)
    @rule(numbers=st.lists(st.tuples(PICK, st.integers(0, 3), st.booleans(), FLAWS), max_size=6))
    def append(self, numbers: list[tuple[int, int, bool, str]]) -> None:
        writers: dict[str, Writer] = {}
        appends: list[Append] = []
        for number, outputs, end, flaw in numbers:
            record = self.pick(number)
            writer = writers.setdefault(record.id, Writer(record))
            append = _spoil(writer, writer.append(*_events(writer.record, outputs, end)), flaw)
            if append.entries and isinstance(append.entries[-1].event, Completed) and number % 2:
                append = replace(
                    append, outgoing=outgoing(record.id, record.created_at, bytes([number % 256]))
                )
            appends.append(append)
        self.ask(lambda store: store.append(appends))

    @precondition(lambda self: self.memory._logs)
    @rule(number=PICK, after=st.integers(0, 12), limit=st.integers(0, 6))
    def read(self, number: int, after: int, limit: int) -> None:
        record = self.pick(number)
        self.ask(lambda store: store.read(record.id, after, limit))

    @rule(limit=st.integers(1, 4), after=st.none() | MINUTES, before=st.none() | MINUTES, owner=OWNERS)
    def list(self, limit: int, after: int | None, before: int | None, owner: str) -> None:
        created_after = None if after is None else NOW + timedelta(minutes=after)
        created_before = None if before is None else NOW + timedelta(minutes=before)

        async def pages(store: PredictionStore) -> object:
            found, token = [], ""
            while True:
                page = await store.list(
                    limit=limit,
                    token=token,
                    owner=owner,
                    created_after=created_after,
                    created_before=created_before,
                )
                found.append(page)
                token = page.next_token
                if not token:
                    return found

        self.ask(pages)

    @rule(data=MINUTES, records=MINUTES)
    def expire(self, data: int, records: int) -> None:
        data_before, records_before = NOW + timedelta(minutes=data), NOW + timedelta(minutes=records)
        self.ask(lambda store: store.expire(data_before, records_before))

    @rule(number=PICK, outcome=st.integers(0, 2))
    def settle(self, number: int, outcome: int) -> None:
        known = [delivery for delivery in self.memory._deliveries.values() if not delivery.settled]
        if known:
            delivery = known[number % len(known)]
            next_at = (delivery.next_at or NOW) + timedelta(minutes=1) if outcome == 0 else None
            changed = replace(
                delivery, attempts=delivery.attempts + 1, next_at=next_at, given_up=outcome == 1
            )
            self.ask(lambda store: store.update(changed))

    @invariant()
    def the_outbox_is_whole(self) -> None:
        if not hasattr(self, "sqlite"):
            return
        for limit in (3, 1000):
            self.ask(partial(_lists, limit))
        for delivery in list(self.memory._deliveries.values()):
            body = self.ask(partial(_body, delivery.id))
            assert (body is None) == delivery.settled
            self.ask(partial(_deliveries, delivery.prediction_id))

    @rule()
    def reopen(self) -> None:
        self.runner.run(self.sqlite.__aexit__())
        self.open()

    @invariant()
    def every_log_is_whole(self) -> None:
        if not hasattr(self, "sqlite"):
            return
        self.ask(lambda store: store.unfinished())
        for prediction_id in list(self.memory._logs):
            record = self.ask(partial(_find, prediction_id))
            assert isinstance(record, Prediction)
            log = self.ask(partial(_read, prediction_id))
            if not record.data_removed:
                assert isinstance(log, tuple)
                _check_log(record, log)


async def _find(prediction_id: str, store: PredictionStore) -> object:
    return await store.find(prediction_id)


async def _read(prediction_id: str, store: PredictionStore) -> object:
    return await store.read(prediction_id, 0, 10**6)


async def _lists(limit: int, store: PredictionStore) -> object:
    return await store.pending(limit), await store.given_up(limit)


async def _body(delivery_id: str, store: PredictionStore) -> object:
    return await store.body(delivery_id)


async def _deliveries(prediction_id: str, store: PredictionStore) -> object:
    return await store.deliveries(prediction_id, 10)


async def _answer(question: Callable[[PredictionStore], Awaitable[object]], store: PredictionStore) -> object:
    try:
        return await question(store)
    except (TailraceError, ValueError) as error:
        return type(error)


def _events(record: Prediction, outputs: int, end: bool) -> list[Event]:
    """Return events that may follow in the record's state; past its end, what a loser would write."""
    if record.status.terminal:
        return []
    events: list[Event] = [Started(NOW, 2)] if record.status is Status.STARTING else []
    events += [output("x" * number) for number in range(outputs)]
    if end:
        events.append(Completed(record.created_at, Status.SUCCEEDED, FinishReason.LENGTH))
    return events


def _spoil(writer: Writer, append: Append, flaw: str) -> Append:
    record = append.record
    if flaw == "old epoch":
        return replace(append, epoch=append.epoch + 1, record=replace(record, epoch=record.epoch + 1))
    if flaw == "unknown":
        return replace(append, prediction_id="nobody", record=replace(record, id="nobody"))
    shift = {"none": 0, "repeat": -1, "gap": 1}[flaw]
    entries = tuple(Entry(entry.sequence + shift, entry.event) for entry in append.entries)
    return replace(
        append, entries=entries, record=replace(record, last_sequence=record.last_sequence + shift)
    )


def _check_log(record: Prediction, log: tuple[Entry, ...]) -> None:
    """Hold a log to I1 (no hole), I3 (one end, the last) and to its record."""
    assert [entry.sequence for entry in log] == list(range(1, record.last_sequence + 1))
    ends = [entry.sequence for entry in log if isinstance(entry.event, Completed)]
    assert ends == ([record.last_sequence] if record.status.terminal else [])
    assert not any(isinstance(entry.event, Log) for entry in log)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=25, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
