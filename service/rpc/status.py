"""Domain errors as gRPC statuses: the one table of the service's side.

A status is a code, a message for people and a `google.rpc.Status` in the trailer
`grpc-status-details-bin`: exactly one ErrorInfo (AIP-193), a BadRequest for bad input, a RetryInfo
where a retry can help. The edge reads it back in `edge/upstream/errors.py`.

Bounds. gRPC refuses a header block above a soft limit of 8 KiB, and the caller then sees that
instead of the status (https://github.com/grpc/grpc/issues/37852). A message of 1 KiB grows to at
most 3 KiB percent-encoded and 3 KiB of details to 4 KiB in base64, so the two stay below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from service.domain.errors import InvalidRequest, TailraceError
from service.domain.public_text import MAX_ERROR_BYTES, public_text

DOMAIN = "tailrace"
DETAILS_KEY = "grpc-status-details-bin"
MAX_MESSAGE_BYTES = MAX_ERROR_BYTES
MAX_VIOLATION_BYTES = 256
MAX_VIOLATIONS_BYTES = 1536
"""All field violations together; those beyond are counted in the message only."""
DEFAULT_RETRY_AFTER = timedelta(seconds=1)
"""For a retryable error that knows no better."""

CODES: dict[str, grpc.StatusCode] = {
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "CONTEXT_EXCEEDED": grpc.StatusCode.INVALID_ARGUMENT,
    "UNSUPPORTED_BY_ENGINE": grpc.StatusCode.INVALID_ARGUMENT,
    "PREDICTION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "MODEL_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "ID_CONFLICT": grpc.StatusCode.ALREADY_EXISTS,
    "CURSOR_EXPIRED": grpc.StatusCode.OUT_OF_RANGE,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "TOO_MANY_READERS": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "READER_TOO_SLOW": grpc.StatusCode.ABORTED,
    "ENGINE_NOT_READY": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "STORE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "INTERNAL": grpc.StatusCode.INTERNAL,
}
INTERNAL = TailraceError("The service failed. Its log has the cause under this request's id.")
"""What callers get of an exception we do not know."""
UNKNOWN_SERVICE = grpc.StatusCode.NOT_FOUND
"""For a health check of a service that is not there, as grpc.health.v1 demands: no error of ours."""


@dataclass(frozen=True, slots=True)
class RpcStatus:
    """What ends a call that failed."""

    code: grpc.StatusCode
    message: str
    """At most 1 KiB of UTF-8."""
    trailer: tuple[tuple[str, bytes], ...]


def status_of(error: TailraceError) -> RpcStatus:
    """Return how `error` ends a call."""
    code = CODES[error.reason]
    message = public_text(error.message, MAX_MESSAGE_BYTES)
    details: list[Message] = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
    if isinstance(error, InvalidRequest):
        details.append(_bad_request(error))
    if error.retryable or error.retry_after is not None:
        details.append(_retry_info(error.retry_after or DEFAULT_RETRY_AFTER))
    rich = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = AnyMessage()
        packed.Pack(detail)
        rich.details.append(packed)
    return RpcStatus(code, message, ((DETAILS_KEY, rich.SerializeToString()),))


def _bad_request(error: InvalidRequest) -> error_details_pb2.BadRequest:
    message = error_details_pb2.BadRequest()
    for violation in error.violations:
        message.field_violations.add(
            field=public_text(violation.field, MAX_VIOLATION_BYTES),
            description=public_text(violation.description, MAX_VIOLATION_BYTES),
        )
        if message.ByteSize() > MAX_VIOLATIONS_BYTES:
            del message.field_violations[-1]
            break
    return message


def _retry_info(after: timedelta) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromTimedelta(max(after, timedelta(0)))
    return error_details_pb2.RetryInfo(retry_delay=delay)
