"""Makes the calls of webhooks: signs them, bounds how many run, and says how they went.

Owns what all calls have in common, those that must arrive and those that need not. It does not own
when a call is made, nor what becomes of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog

from service.domain.webhook import owner_secrets, signature_header
from service.domain.webhook_delivery import Answer
from service.domain.webhook_target import host_of
from service.ports.clock import Clock
from service.ports.webhooks import WebhookTransport

log = structlog.get_logger()

USER_AGENT = "Tailrace-Webhooks/1"


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt."""

    id: str
    """The `webhook-id`."""
    prediction_id: str
    owner: str
    url: str
    body: Callable[[], bytes]
    """Asked when the call's turn has come, so that it tells the latest state."""


@dataclass(slots=True)
class _Host:
    slots: anyio.Semaphore
    users: int = 0


@dataclass(slots=True)
class CallSlots:
    """How many calls may run, in all and for one host. When full, calls wait for their turn."""

    total: int
    per_host: int
    _all: anyio.Semaphore = field(init=False)
    _hosts: dict[str, _Host] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._all = anyio.Semaphore(self.total)

    @asynccontextmanager
    async def hold(self, host: str) -> AsyncGenerator[None, None]:
        """Hold a slot while the block runs."""
        state = self._hosts.setdefault(host, _Host(anyio.Semaphore(self.per_host)))
        state.users += 1
        try:
            async with state.slots, self._all:
                yield
        finally:
            state.users -= 1
            if not state.users:
                del self._hosts[host]


class WebhookCaller:
    """Makes calls. Any number of tasks may use it."""

    def __init__(
        self, transport: WebhookTransport, clock: Clock, secrets: Sequence[bytes], slots: CallSlots
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._secrets = tuple(secrets)
        self._slots = slots

    async def call(self, call: Call) -> Answer:
        """Make one attempt when its turn has come, and return how it went."""
        async with self._slots.hold(host_of(call.url)):
            body = call.body()
            timestamp_s = int(self._clock.now().timestamp())
            headers = {
                "content-type": "application/json",
                "user-agent": USER_AGENT,
                "webhook-id": call.id,
                "webhook-timestamp": str(timestamp_s),
                "webhook-signature": signature_header(
                    owner_secrets(self._secrets, call.owner), call.id, timestamp_s, body
                ),
            }
            began = self._clock.monotonic()
            answer = await self._transport.post(call.url, headers, body)
        log.info(
            "webhook_called",
            prediction_id=call.prediction_id,
            webhook_id=call.id,
            http_status=answer.status,
            outcome="delivered" if answer.accepted else "failed",
            detail=answer.error,
            duration_ms=round((self._clock.monotonic() - began) * 1000, 1),
        )
        return answer
