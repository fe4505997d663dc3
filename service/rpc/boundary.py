"""The RPC boundary: what every call of ours goes through.

Binds the request's ids for the log, writes one `rpc_done` line a call, and ends each failure with
a status. It alone ends a cancellation (style A12): a call that *we* cancel would otherwise leave
its client without any status, and inside the handler `context.cancelled()` does not tell whose
cancellation it is (https://github.com/grpc/grpc/issues/36193). So it tries to abort, ignores that
the peer is gone, and re-raises: a handler that swallows the cancellation leaks
(https://github.com/grpc/grpc/issues/43360).

Bytes that are no message of the method's type are bad input like any other: left to itself, gRPC
answers UNKNOWN with the parser's own text.

Health checks and reflection pass untouched: other protocols, with rules of their own.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import anyio
import grpc
import structlog
from google.protobuf.message import DecodeError

from protos.metadata import REQUEST_ID, TRACEPARENT
from service.domain.errors import Draining, InvalidRequest, TailraceError
from service.domain.request import FieldViolation
from service.ports.clock import Clock
from service.rpc.status import INTERNAL, status_of

log = structlog.get_logger()

OURS = "/tailrace."
MAX_REQUEST_ID = 128
ABORT_LIMIT_S = 1.0
"""How long a status may take to be handed over. Behind unread messages it waits for the reader; it
stays queued in the transport then, and the handler need not wait with it (measured, 1.85.3)."""
DEADLINE_SLACK_S = 0.05
"""The client's timer fires before ours by the way to us, and grpc-timeout is rounded up by up to
1 %: a cancellation so shortly before the deadline is the deadline."""
_TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

UNREADABLE = object()
"""Stands for a request whose bytes are no message of the method's type."""
Metadata = Sequence[tuple[str, str | bytes]]
T = TypeVar("T")


class Boundary(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc is untyped
    """The interceptor. Place it first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(OURS):
            return handler
        inner, make, read = _kind_of(handler)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            _bind(details.invocation_metadata or ())
            body = _refuse() if request is UNREADABLE else inner(request, context)
            return await self._run(details.method, context, body)

        return make(call, read, handler.response_serializer)

    async def _run(self, method: str, context: grpc.aio.ServicerContext, body: Awaitable[T]) -> T:
        began = self._clock.monotonic()
        limit_s = context.time_remaining()
        code, outcome, fields = "OK", "finished", {}
        try:
            return await body
        except TailraceError as error:
            code, outcome = status_of(error).code.name, "error"
            fields = {"reason": error.reason, "detail": error.detail}
            await _abort(context, error)
        except asyncio.CancelledError:
            code, outcome = self._gone(began, limit_s)
            try:
                await _abort(context, Draining("the service ended this call"))
            except grpc.aio.BaseError:
                pass  # the peer is gone, or has its status
            raise
        except grpc.aio.BaseError:  # raised by a write to a peer that is gone
            code, outcome = self._gone(began, limit_s)
            raise
        except Exception:
            code, outcome = status_of(INTERNAL).code.name, "error"
            log.exception("rpc_failed", method=method)
            await _abort(context, INTERNAL)
        finally:
            spent_ms = round((self._clock.monotonic() - began) * 1000, 3)
            log.info("rpc_done", method=method, code=code, outcome=outcome, duration_ms=spent_ms, **fields)

    def _gone(self, began: float, limit_s: float | None) -> tuple[str, str]:
        """Return code and outcome of a call that the peer, or a deadline, has ended."""
        if limit_s is not None:
            slack_s = DEADLINE_SLACK_S + limit_s / 100
            if self._clock.monotonic() - began >= limit_s - slack_s:
                return "DEADLINE_EXCEEDED", "deadline"
        return "CANCELLED", "canceled"


def _kind_of(handler: grpc.RpcMethodHandler) -> tuple[Any, Any, Any]:
    """Return a handler's function, what makes one of its kind, and the reader of its requests."""
    if handler.request_streaming:
        return handler.stream_stream, grpc.stream_stream_rpc_method_handler, handler.request_deserializer
    read = _reading(handler.request_deserializer)
    if handler.response_streaming:
        return handler.unary_stream, grpc.unary_stream_rpc_method_handler, read
    return handler.unary_unary, grpc.unary_unary_rpc_method_handler, read


def _reading(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that gives UNREADABLE instead of raising."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return UNREADABLE

    return read


async def _refuse() -> NoReturn:
    text = "is no message of this method: cut off, or with text that is not UTF-8"
    raise InvalidRequest((FieldViolation("request", text),))


async def _abort(context: grpc.aio.ServicerContext, error: TailraceError) -> NoReturn:
    """End the call with the error's status. Raises grpc's AbortError, which ends the handler."""
    status = status_of(error)
    with anyio.move_on_after(ABORT_LIMIT_S, shield=True):
        await context.abort(status.code, status.message, status.trailer)
    # The reader does not read. grpc takes only its own AbortError or a cancellation as an end.
    raise asyncio.CancelledError


def _bind(metadata: Metadata) -> None:
    """Bind the ids of one call for every log line of its task; the task is the call's own."""
    given = {key: value for key, value in metadata if key in (REQUEST_ID, TRACEPARENT)}
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=_request_id(given.get(REQUEST_ID)))
    trace = given.get(TRACEPARENT)
    if isinstance(trace, str) and (found := _TRACE_ID.fullmatch(trace)):
        structlog.contextvars.bind_contextvars(trace_id=found[1])


def _request_id(value: str | bytes | None) -> str:
    """Return the caller's id if it is fit for a log, else one of ours."""
    text = value.strip() if isinstance(value, str) else ""
    if 0 < len(text) <= MAX_REQUEST_ID and text.isascii() and text.isprintable():
        return text
    return secrets.token_hex(8)
