"""Owns the way back from a gRPC status to an error of ours: reason, HTTP status, what to tell.

Specification: `protos/tailrace/v1/errors.proto`, google.rpc.ErrorInfo, BadRequest and RetryInfo in
the trailer `grpc-status-details-bin`. A status without our ErrorInfo comes from gRPC itself or from
something between the service and us; it is mapped by its code, and its text is never shown.
"""

import enum
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY: Final = "grpc-status-details-bin"
DOMAIN: Final = "tailrace"
MAX_MESSAGE_BYTES: Final = 1024
"""Longest message passed on; the contract's own limit."""

DEFAULT_RETRY_AFTER: Final = timedelta(seconds=1)
"""Told when a retry helps and the service named no time."""

MAX_RETRY_AFTER: Final = timedelta(hours=1)
"""Longest time passed on."""


class Reason(enum.Enum):
    """Why; the names are those of proto `ErrorReason` without prefix, and those of the edge's own."""

    INVALID_REQUEST = "INVALID_REQUEST"
    CONTEXT_EXCEEDED = "CONTEXT_EXCEEDED"
    UNSUPPORTED_BY_ENGINE = "UNSUPPORTED_BY_ENGINE"
    PREDICTION_NOT_FOUND = "PREDICTION_NOT_FOUND"
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    ID_CONFLICT = "ID_CONFLICT"
    CURSOR_EXPIRED = "CURSOR_EXPIRED"
    QUEUE_FULL = "QUEUE_FULL"
    TOO_MANY_READERS = "TOO_MANY_READERS"
    READER_TOO_SLOW = "READER_TOO_SLOW"
    ENGINE_NOT_READY = "ENGINE_NOT_READY"
    DRAINING = "DRAINING"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    INTERNAL = "INTERNAL"
    UNREACHABLE = "UNREACHABLE"
    """No answer from the service; the edge's own."""
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    """The service took longer than the call may take; the edge's own."""
    GENERATION_FAILED = "GENERATION_FAILED"
    """The prediction failed, where the answer is its output; the edge's own, like the next two."""
    GENERATION_CANCELED = "GENERATION_CANCELED"
    GENERATION_DEADLINE = "GENERATION_DEADLINE"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reason means to the caller of the HTTP API."""

    http_status: int
    title: str
    retryable: bool = False
    """Whether the same request can succeed a little later."""


OUTCOMES: Final = {
    Reason.INVALID_REQUEST: Outcome(400, "Invalid request"),
    Reason.CONTEXT_EXCEEDED: Outcome(400, "Context exceeded"),
    Reason.UNSUPPORTED_BY_ENGINE: Outcome(400, "Unsupported by the model's engine"),
    Reason.PREDICTION_NOT_FOUND: Outcome(404, "Prediction not found"),
    Reason.MODEL_NOT_FOUND: Outcome(404, "Model not found"),
    Reason.ID_CONFLICT: Outcome(409, "Request id conflict"),
    Reason.CURSOR_EXPIRED: Outcome(410, "Data removed"),
    Reason.QUEUE_FULL: Outcome(429, "Queue full", retryable=True),
    Reason.TOO_MANY_READERS: Outcome(429, "Too many readers", retryable=True),
    Reason.READER_TOO_SLOW: Outcome(503, "Stream interrupted", retryable=True),
    Reason.ENGINE_NOT_READY: Outcome(503, "Model not ready", retryable=True),
    Reason.DRAINING: Outcome(503, "Service stopping", retryable=True),
    Reason.STORE_UNAVAILABLE: Outcome(503, "Storage unavailable", retryable=True),
    Reason.INTERNAL: Outcome(500, "Internal error"),
    Reason.UNREACHABLE: Outcome(503, "Service unavailable", retryable=True),
    Reason.DEADLINE_EXCEEDED: Outcome(504, "Deadline exceeded", retryable=True),
    Reason.GENERATION_FAILED: Outcome(500, "Generation failed"),
    Reason.GENERATION_CANCELED: Outcome(409, "Generation canceled"),
    Reason.GENERATION_DEADLINE: Outcome(504, "Generation took too long"),
}
"""Total over `Reason`, which is total over the proto enum; both are tested."""

_FIXED_MESSAGES: Final = {
    Reason.UNREACHABLE: "The generation service cannot be reached at the moment.",
    Reason.DEADLINE_EXCEEDED: "The generation service did not answer in time.",
    Reason.INTERNAL: "An internal error happened.",
    Reason.PREDICTION_NOT_FOUND: "No such prediction.",
    Reason.ID_CONFLICT: "This Idempotency-Key or prediction id was used before, with another body.",
    Reason.GENERATION_FAILED: "The model failed while it generated.",
    Reason.GENERATION_CANCELED: "The prediction was canceled through the API.",
    Reason.GENERATION_DEADLINE: "The prediction's deadline passed before it ended.",
}
"""Told instead of the service's own words."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that cannot be taken."""

    field: str
    """Its path in the request message."""

    description: str
    """What is wrong, for people."""


class UpstreamError(Exception):
    """The service refused, failed or could not be reached. The message is fit for any caller."""

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        violations: tuple[Violation, ...] = (),
        retry_after: timedelta | None = None,
    ) -> None:
        self.reason = reason
        self.message = message or _FIXED_MESSAGES.get(reason, OUTCOMES[reason].title)
        self.violations = violations
        self.prediction_id = ""
        """The prediction that failed so, where there is one."""
        self.retry_after = retry_after
        if retry_after is None and self.outcome.retryable:
            self.retry_after = DEFAULT_RETRY_AFTER
        super().__init__(f"{reason.value}: {self.message}")

    @property
    def outcome(self) -> Outcome:
        """HTTP status, title and whether a retry can help."""
        return OUTCOMES[self.reason]

    @property
    def is_passing(self) -> bool:
        """Whether the edge itself may try a safe call again, or go on reading a stream.

        A full queue and a model that loads are not: the caller decides, by what `retry_after` says.
        """
        return self.reason in _PASSING


_PASSING: Final = frozenset(
    (
        Reason.UNREACHABLE,
        Reason.DRAINING,
        Reason.STORE_UNAVAILABLE,
        Reason.READER_TOO_SLOW,
    )
)

_BY_CODE: Final = {
    grpc.StatusCode.UNAVAILABLE: Reason.UNREACHABLE,
    grpc.StatusCode.CANCELLED: Reason.UNREACHABLE,
    grpc.StatusCode.ABORTED: Reason.READER_TOO_SLOW,
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.DEADLINE_EXCEEDED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_REQUEST,
}


def from_rpc_error(error: grpc.aio.AioRpcError) -> UpstreamError:
    """Return the error that a failed call means. Never raises."""
    details = _details(error)
    reason = Reason.INTERNAL
    known = False
    violations: tuple[Violation, ...] = ()
    retry_after: timedelta | None = None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            if info.domain == DOMAIN and info.reason in Reason.__members__:
                reason, known = Reason[info.reason], True
        elif detail.Is(bad.DESCRIPTOR):
            detail.Unpack(bad)
            violations = tuple(Violation(v.field, _cut(v.description)) for v in bad.field_violations)
        elif detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after = min(max(retry.retry_delay.ToTimedelta(), timedelta(0)), MAX_RETRY_AFTER)
    if not known:
        return UpstreamError(_BY_CODE.get(error.code(), Reason.INTERNAL))
    message = "" if reason in _FIXED_MESSAGES else _cut(error.details() or "")
    return UpstreamError(reason, message, violations=violations, retry_after=retry_after)


def _details(error: grpc.aio.AioRpcError):  # type: ignore[no-untyped-def]  # Any messages of google.rpc.Status
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value).details
            except DecodeError:
                return ()
    return ()


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
