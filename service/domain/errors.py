"""The error taxonomy: why a request could not be taken or a thing not be found.

A class fixes its `reason` (equal to a name of the proto enum `ErrorReason`) and whether a retry
can help; an instance carries a message for callers and a detail for the log only. A generation
that fails is no error here: it is data (status failed).
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from service.domain.request import FieldViolation


class TailraceError(Exception):
    """Base of all domain errors. `message` is safe to show to any caller."""

    reason: ClassVar[str] = "INTERNAL"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, detail: str = "", retry_after: timedelta | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.retry_after = retry_after


class InvalidRequest(TailraceError):
    """One or more fields cannot be taken; `violations` names each."""

    reason = "INVALID_REQUEST"

    def __init__(self, violations: tuple[FieldViolation, ...], *, detail: str = "") -> None:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        super().__init__(f"{first.field} {first.description}{more}", detail=detail)
        self.violations = violations


class ContextExceeded(InvalidRequest):
    """The prompt leaves no room in the model's context."""

    reason = "CONTEXT_EXCEEDED"


class UnsupportedByEngine(InvalidRequest):
    """The engine that serves this model cannot do what a field asks."""

    reason = "UNSUPPORTED_BY_ENGINE"


class PredictionNotFound(TailraceError):
    """No such prediction, or it is another's: the two look the same."""

    reason = "PREDICTION_NOT_FOUND"


class ModelNotFound(TailraceError):
    """No such model is served."""

    reason = "MODEL_NOT_FOUND"


class IdConflict(TailraceError):
    """The same request id came with another body."""

    reason = "ID_CONFLICT"


class CursorExpired(TailraceError):
    """The log asked for has been removed after its retention."""

    reason = "CURSOR_EXPIRED"


class QueueFull(TailraceError):
    """No room in the queue; `retry_after` comes from the queue's own speed."""

    reason = "QUEUE_FULL"
    retryable = True


class TooManyReaders(TailraceError):
    """The prediction already has its limit of readers."""

    reason = "TOO_MANY_READERS"
    retryable = True


class ReaderTooSlow(TailraceError):
    """The reader took nothing for the stall limit; it can resume."""

    reason = "READER_TOO_SLOW"
    retryable = True


class EngineNotReady(TailraceError):
    """The model is loading, or its engine is being restarted."""

    reason = "ENGINE_NOT_READY"
    retryable = True


class Draining(TailraceError):
    """The service is stopping and takes no new work."""

    reason = "DRAINING"
    retryable = True


class StoreUnavailable(TailraceError):
    """The store refused a write (disk full, file gone); nothing was accepted."""

    reason = "STORE_UNAVAILABLE"
    retryable = True
