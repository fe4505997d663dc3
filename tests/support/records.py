"""Predictions as the edge holds them, for tests of what is made of them."""

from datetime import UTC, datetime, timedelta

from edge.upstream.events import Accepted, Completed, FinishReason, OutputText, Status, Usage
from edge.upstream.records import Generation, PredictionRecord, TextInput

EPOCH = datetime(2026, 11, 30, 18, 47, 8, 234000, tzinfo=UTC)
CREATED_S = int(EPOCH.timestamp())
PREDICTION_ID = "abcdefghijklmnopqrstuvwxyz"


def record(status: Status, **changes: object) -> PredictionRecord:
    """Return a prediction in `status`."""
    values: dict[str, object] = {
        "id": PREDICTION_ID,
        "model": "acme/llm",
        "generation": Generation(TextInput("x")),
        "status": status,
        "output": (),
        "created_at": EPOCH,
    }
    return PredictionRecord(**(values | changes))  # type: ignore[arg-type]  # fields by name


def accepted() -> Accepted:
    """Return the first event of a log."""
    return Accepted(1, PREDICTION_ID, EPOCH)


def output(sequence: int, text: str, *, first: int | None = None) -> OutputText:
    """Return an output event of one or several entries."""
    return OutputText(sequence if first is None else first, sequence, text, 1)


def completed(sequence: int, status: Status = Status.SUCCEEDED, error: str = "") -> Completed:
    """Return the last event of a log."""
    reasons = {Status.SUCCEEDED: FinishReason.STOP, Status.FAILED: FinishReason.ERROR}
    reason = reasons.get(status, FinishReason.CANCELED)
    return Completed(sequence, EPOCH + timedelta(seconds=3), status, reason, None, Usage(7, 0, 5), error)
