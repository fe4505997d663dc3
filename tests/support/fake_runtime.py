"""The runtime as the RPC layer sees it, in memory and driven by the test.

Not a second runtime: it has no queue, no engine and no store. A test writes a prediction's log
with `append` and says with `refuse` which error the next call is to raise.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio

from service.domain.errors import (
    CursorExpired,
    Draining,
    IdConflict,
    InvalidRequest,
    ModelNotFound,
    PredictionNotFound,
)
from service.domain.events import Accepted, Completed, Entry, Event, FinishReason, Log, Output, Status
from service.domain.lifecycle import Prediction, advance, lasting_labels
from service.domain.request import FieldViolation, Prompt, check
from service.domain.webhook_delivery import Delivery
from service.ports.engine import EngineInfo
from service.ports.store import Created, Page
from service.runtime.creation import NewPrediction
from service.runtime.cursor import OutputSoFar
from service.runtime.models import ModelState, ServedModel

INFO = EngineInfo(
    engine="scripted",
    slots=4,
    context_tokens=2048,
    vocabulary_size=100,
    chat_template=True,
    capabilities=frozenset({"logprobs", "json_schema"}),
    weights_sha256="00ff",
)


class FakeCursor:
    """One reader's place in a fake log."""

    def __init__(self, runtime: FakePredictions, prediction_id: str, after: int) -> None:
        self._runtime = runtime
        self._id = prediction_id
        self._after = after

    async def skip_to_end(self) -> None:
        """See `LogCursor.skip_to_end`."""
        while await self.next():
            pass

    async def next(self) -> tuple[Entry, ...]:
        """Return what was logged since the last call."""
        log = self._runtime.logs[self._id]
        while len(log) <= self._after:
            if isinstance(log[-1].event, Completed):
                return ()
            await self._runtime.changed.wait()
        entries = tuple(log[self._after : self._after + 1000])
        self._after = entries[-1].sequence
        return entries


class FakePredictions:
    """Stands in for `service.runtime.predictions.Predictions`."""

    def __init__(self) -> None:
        self.records: dict[str, Prediction] = {}
        self.logs: dict[str, list[Entry]] = {}
        self.created: list[NewPrediction] = []
        self.changed = anyio.Event()
        self.refuse: Exception | None = None
        self.left: list[str] = []
        """Predictions whose attached cursor was left before the end."""
        self.open_cursors = 0
        self.draining = False

    async def create(self, new: NewPrediction) -> Created:
        """Accept."""
        self._maybe_refuse()
        if self.draining:
            raise Draining("the service is stopping")
        if found := check(new.request):
            raise InvalidRequest(found)
        for record in self.records.values():
            named = new.request_id and (record.owner, record.request_id) == (new.owner, new.request_id)
            if named or record.id == new.prediction_id:
                if record.request != new.request or record.owner != new.owner:
                    raise IdConflict("the request id was used with another body")
                return Created(record, fresh=False)
        self.created.append(new)
        prediction_id = new.prediction_id or new.fresh_id or f"p{len(self.records)}"
        self.records[prediction_id] = Prediction(
            id=prediction_id,
            model=new.model,
            request=new.request,
            created_at=datetime.now(UTC),
            attached=new.attached,
            request_id=new.request_id,
            labels=new.labels,
            owner=new.owner,
            webhook=new.webhook,
        )
        self.logs[prediction_id] = []
        self.append(prediction_id, Accepted(datetime.now(UTC)))
        return Created(self.records[prediction_id], fresh=True)

    def append(self, prediction_id: str, *events: Event) -> None:
        """Log events and wake the readers."""
        for event in events:
            record = self.records[prediction_id]
            entry = Entry(record.last_sequence + 1, event)
            self.records[prediction_id] = advance(record, entry, datetime.now(UTC))
            self.logs[prediction_id].append(entry)
        self.wake()

    def end(self, prediction_id: str, status: Status, reason: FinishReason, error: str = "") -> None:
        """Log the end."""
        self.append(prediction_id, Completed(datetime.now(UTC), status, reason, error=error))

    def wake(self) -> None:
        """Let all that wait look again."""
        changed, self.changed = self.changed, anyio.Event()
        changed.set()

    async def get(self, prediction_id: str, wait: timedelta = timedelta(0), *, owner: str = "") -> Prediction:
        """Read."""
        self._maybe_refuse()
        with anyio.move_on_after(wait.total_seconds()):
            while wait and not self._record(prediction_id, owner).status.terminal:
                await self.changed.wait()
        return self._record(prediction_id, owner)

    async def read_output(self, prediction_id: str, *, owner: str = "") -> OutputSoFar:
        """Read the data."""
        self._record(prediction_id, owner)
        events = [entry.event for entry in self.logs[prediction_id]]
        pieces = tuple(event.text for event in events if isinstance(event, Output))
        return OutputSoFar(pieces, "\n".join(event.text for event in events if isinstance(event, Log)))

    async def list(
        self,
        *,
        limit: int,
        token: str = "",
        owner: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> Page:
        """List; the token is the number of predictions already listed."""
        self._maybe_refuse()
        if token and not token.isdecimal():
            raise InvalidRequest((FieldViolation("page_token", "is not a token of this service"),))
        start = int(token or 0)
        newest = [
            record
            for record in reversed(self.records.values())
            if owner in ("", record.owner)
            and (created_after is None or record.created_at > created_after)
            and (created_before is None or record.created_at < created_before)
        ]
        page = tuple(newest[start : start + limit])
        return Page(page, str(start + limit) if start + limit < len(newest) else "")

    async def cancel(self, prediction_id: str, *, owner: str = "") -> Prediction:
        """Cancel."""
        self._maybe_refuse()
        if not self._record(prediction_id, owner).status.terminal:
            self.end(prediction_id, Status.CANCELED, FinishReason.CANCELED)
        return self._record(prediction_id)

    @asynccontextmanager
    async def open_log(
        self, prediction_id: str, after: int = 0, *, attach: bool = False, owner: str = ""
    ) -> AsyncGenerator[FakeCursor, None]:
        """Follow."""
        self._maybe_refuse()
        if self._record(prediction_id, owner).data_removed:
            raise CursorExpired("the data has been removed")
        self.open_cursors += 1
        try:
            yield FakeCursor(self, prediction_id, after)
        finally:
            self.open_cursors -= 1
            if attach and not self._record(prediction_id).status.terminal:
                self.left.append(prediction_id)
            self.wake()

    async def drain(self, grace: timedelta) -> None:
        """Wait for the end of all."""
        self.draining = True
        with anyio.move_on_after(grace.total_seconds()):
            while not all(record.status.terminal for record in self.records.values()):
                await self.changed.wait()

    async def until_left(self) -> None:
        """Wait until no cursor is open."""
        while self.open_cursors:
            await self.changed.wait()

    def remove_data(self, prediction_id: str) -> None:
        """Let retention pass."""
        self.records[prediction_id] = replace(
            self.records[prediction_id],
            data_removed=True,
            request=None,
            labels=lasting_labels(self.records[prediction_id].labels),
        )

    def _record(self, prediction_id: str, owner: str = "") -> Prediction:
        record = self.records.get(prediction_id)
        if record is None or owner not in ("", record.owner):
            raise PredictionNotFound("no such prediction")
        return record

    def _maybe_refuse(self) -> None:
        if self.refuse is not None:
            raise self.refuse


class FakeWebhooks:
    """Stands in for `service.runtime.webhooks.Webhooks`."""

    def key_of(self, owner: str) -> str:
        """Return a key that tells the owner apart."""
        return "whsec_" + base64.b64encode(owner.encode().rjust(24, b"k")).decode()

    def __init__(self) -> None:
        self.made: list[Delivery] = []
        self.asked_for: list[str] = []

    async def deliveries(self, prediction_id: str, limit: int) -> tuple[Delivery, ...]:
        """List one prediction's."""
        return tuple(d for d in reversed(self.made) if d.prediction_id == prediction_id)[:limit]

    async def given_up(self, limit: int, *, owner: str = "") -> tuple[Delivery, ...]:
        """List the dead ones; `asked_for` keeps for whom."""
        self.asked_for.append(owner)
        return tuple(d for d in reversed(self.made) if d.given_up)[:limit]


class FakeModels:
    """Stands in for `service.runtime.models.Models`, with one model."""

    def __init__(self) -> None:
        self.state = ModelState.READY
        self.info: EngineInfo | None = INFO
        self._changed = anyio.Event()

    def list(self) -> tuple[ServedModel, ...]:
        """Return all models."""
        return (ServedModel("local/test", self.state, self.info, running=1, waiting=2),)

    def get(self, name: str) -> ServedModel:
        """Return one."""
        if name != "local/test":
            raise ModelNotFound("no such model")
        return self.list()[0]

    async def count(self, name: str, prompt: Prompt) -> int:
        """Count words."""
        self.get(name)
        return len(str(prompt).split())

    def become(self, state: ModelState) -> None:
        """Change the state."""
        self.state = state
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def changed(self) -> None:
        """Wait for a change."""
        await self._changed.wait()
