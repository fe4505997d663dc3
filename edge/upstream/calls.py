"""Owns one unary call to the service: its deadline, its retries, and what its failures become."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

import anyio.lowlevel
import grpc

from edge.upstream.errors import Reason, UpstreamError, from_rpc_error
from edge.upstream.metadata import Caller
from edge.upstream.retry import RetryBudget

_Request = TypeVar("_Request", contravariant=True)
_Response = TypeVar("_Response", covariant=True)


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """How long calls may take and be tried."""

    deadline: timedelta = timedelta(seconds=10)
    """Of one unary call, beside the wait it asks for."""

    unary_retry: timedelta = timedelta(seconds=5)
    """How long a unary call is tried again after passing faults: a restart of the service fits."""

    stream_retry: timedelta = timedelta(seconds=30)
    """How long a broken stream is tried again without progress."""


class UnaryMethod(Protocol[_Request, _Response]):
    """A unary method of a stub."""

    def __call__(
        self,
        request: _Request,
        *,
        timeout: float | None = None,
        metadata: tuple[tuple[str, str], ...] | None = None,
        wait_for_ready: bool | None = None,
    ) -> Awaitable[_Response]: ...


async def call(
    method: UnaryMethod[_Request, _Response],
    request: _Request,
    policy: CallPolicy,
    *,
    caller: Caller,
    wait: timedelta = timedelta(0),
) -> _Response:
    """Return the answer, trying again while the fault is passing. The request must be repeatable.

    `wait_for_ready` lets the first call after a restart of the service wait for its connection.
    """
    budget = RetryBudget(policy.unary_retry)
    timeout_s = (policy.deadline + wait).total_seconds()
    metadata = caller.metadata()
    while True:
        try:
            return await guarded(method(request, timeout=timeout_s, metadata=metadata, wait_for_ready=True))
        except UpstreamError as error:
            if not error.is_passing:
                raise
            await budget.pause(error)


async def guarded(pending: Awaitable[_Response]) -> _Response:
    """Return what a pending gRPC operation brings; raise UpstreamError where it fails.

    Two things are put right about grpc.aio's CancelledError. It replaces the one that a cancel scope
    raised, and the scope would not know its own again. And it is also raised when the *peer* ended the
    call with CANCELLED, or the channel was closed, when nobody cancelled this task.
    """
    try:
        return await pending
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except asyncio.CancelledError:
        await anyio.lowlevel.checkpoint_if_cancelled()
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise UpstreamError(Reason.UNREACHABLE) from None
