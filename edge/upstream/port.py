"""The port through which dialects reach the service; they know nothing of gRPC.

Promises that hold for every implementation:

1. Only `UpstreamError` comes out, and cancellation.
2. A call has a deadline of its own; nothing waits for ever.
3. Passing faults are retried inside, within the budget of the settings, where a repeat is safe.
4. `create` is safe to have been retried: one call makes at most one prediction.
5. The caller's going away cancels only what `predict` made; all else is detached.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from edge.upstream.events import Accepted, PredictionEvent
from edge.upstream.metadata import Caller
from edge.upstream.records import (
    ModelInput,
    ModelRecord,
    NewPrediction,
    PredictionPage,
    PredictionRecord,
    WebhookDelivery,
)


class EventStream(Protocol):
    """One prediction's events from some point of its log to its end.

    1. Events come in the order of their sequences, each once, without a hole.
    2. `Completed` is the last event; nothing may be asked for after it.
    3. Breaks of the connection are mended inside: a reader sees a pause. `UpstreamError` means that
       the stream could not be mended; the prediction may go on, and can be streamed again.
    4. `receive` gives other tasks a turn before it returns, so a loop over it cannot starve them.
    5. Cancelling `receive` loses nothing: the next one goes on after the last event returned.
    """

    async def receive(self) -> tuple[PredictionEvent, ...]:
        """Return all events that are ready: at least one, as soon as there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """An event of one of several predictions that are read together."""

    index: int
    """Which: its place in what was asked."""

    event: PredictionEvent


class ChoiceStream(Protocol):
    """The events of predictions made together; of each one, what `EventStream` promises.

    Cancelling `receive` neither loses anything nor cancels a prediction.
    """

    @property
    def accepted(self) -> tuple[Accepted, ...]:
        """Return each prediction's first event, in the order asked; `receive` gives them too."""
        ...

    async def receive(self) -> tuple[Choice, ...]:
        """Return all events that are ready: at least one. Not to be asked after the last `Completed`."""
        ...


class UpstreamPredictions(Protocol):
    """Predictions of the service."""

    async def create(self, new: NewPrediction, *, caller: Caller) -> PredictionRecord:
        """Create a prediction that runs to its end whoever goes away."""
        ...

    def predict(
        self, news: Sequence[NewPrediction], *, caller: Caller
    ) -> AbstractAsyncContextManager[ChoiceStream]:
        """Create predictions and stream them, attached: leaving the context cancels them at once.

        Entering creates all of them or raises UpstreamError. They survive a restart of the service.
        """
        ...

    async def get(
        self,
        prediction_id: str,
        *,
        caller: Caller,
        wait: timedelta = timedelta(0),
        omit_data: bool = False,
    ) -> PredictionRecord:
        """Return a prediction; with `wait` (to 60 s) when it has ended or the wait is over."""
        ...

    async def list(
        self,
        *,
        caller: Caller,
        page_size: int = 0,
        page_token: str = "",
        created_after: datetime | None = None,
        created_before: datetime | None = None,
    ) -> PredictionPage:
        """Return a page, the newest first, without output; both bounds are exclusive.

        A page token is good for the bounds that it was given under.
        """
        ...

    async def cancel(self, prediction_id: str, *, caller: Caller) -> PredictionRecord:
        """Cancel a prediction and return its terminal state; one that has ended is unchanged."""
        ...

    def open_stream(
        self, prediction_id: str, after_sequence: int, *, caller: Caller, unjoined: bool = False
    ) -> AbstractAsyncContextManager[EventStream]:
        """Stream the events after `after_sequence`; leaving the context ends the stream.

        Outputs that wait together come as one event, unless `unjoined`: then every reading of a
        prediction brings the same events.

        Not for a position at or beyond the end of a prediction that has ended: nothing would come.
        """
        ...


class UpstreamModels(Protocol):
    """Models that the service serves. Answers may be a few seconds old."""

    async def get(self, name: str, *, caller: Caller) -> ModelRecord:
        """Return a served model."""
        ...

    async def list(self, *, caller: Caller) -> tuple[ModelRecord, ...]:
        """Return all served models."""
        ...

    async def count_tokens(self, name: str, given: ModelInput, *, caller: Caller) -> int:
        """Return exactly what `usage.input_tokens` would say."""
        ...


class UpstreamWebhooks(Protocol):
    """What callers and operators need of webhooks."""

    async def secret(self, *, caller: Caller) -> str:
        """Return the secret that signs the calls of what `caller` creates, `whsec_…`."""
        ...

    async def deliveries(self, prediction_id: str, *, caller: Caller) -> tuple[WebhookDelivery, ...]:
        """Return the calls of one prediction, newest first."""
        ...


class UpstreamHealth(Protocol):
    """Whether the service can be reached and serves."""

    async def is_serving(self) -> bool:
        """Return the answer, at most a second old. Never raises UpstreamError."""
        ...
