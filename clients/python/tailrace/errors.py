"""A gRPC status as an exception with a reason to branch on.

Specification: `protos/tailrace/v1/errors.proto`; google.rpc.ErrorInfo, BadRequest and RetryInfo in
the trailer `grpc-status-details-bin` (AIP-193).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "tailrace"
PASSING = frozenset({"DRAINING", "STORE_UNAVAILABLE", "READER_TOO_SLOW"})
"""Reasons after which a stream goes on in another call."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One field that cannot be taken."""

    field: str
    description: str


class TailraceError(Exception):
    """A call that was refused, failed, or found nobody. A failed generation is no error: see its event."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        reason: str = "",
        violations: tuple[Violation, ...] = (),
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(f"{reason or code.name}: {message}")
        self.code = code
        self.message = message
        self.reason = reason
        """A name of `ErrorReason` without its prefix; empty when gRPC itself failed."""
        self.violations = violations
        """The fields at fault, for INVALID_ARGUMENT."""
        self.retry_after = retry_after
        """When the same call may work; None where a retry does not help."""

    @property
    def passing(self) -> bool:
        """Whether the connection or the service's state is at fault, and a stream can go on later."""
        return self.reason in PASSING or (not self.reason and self.code is grpc.StatusCode.UNAVAILABLE)


class StreamBroken(TailraceError):
    """A stream broke and could not be resumed in time. The prediction itself may go on."""


def from_rpc(error: grpc.RpcError | grpc.aio.AioRpcError) -> TailraceError:
    """Return the error that a failed call means."""
    reason = ""
    violations: tuple[Violation, ...] = ()
    retry_after = None
    info, bad, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.BadRequest(),
        error_details_pb2.RetryInfo(),
    )
    for detail in _details(error).details:
        if detail.Unpack(info):
            reason = info.reason if info.domain == DOMAIN else ""
        elif detail.Unpack(bad):
            violations = tuple(Violation(v.field, v.description) for v in bad.field_violations)
        elif detail.Unpack(retry):
            retry_after = retry.retry_delay.ToTimedelta()
    return TailraceError(error.code(), error.details() or "", reason, violations, retry_after)


def _details(error: grpc.RpcError | grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()
