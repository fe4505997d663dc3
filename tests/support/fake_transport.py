"""A webhook transport that a test drives: it keeps what is sent, and answers as it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from service.domain.webhook_delivery import Answer
from service.domain.webhook_target import host_of


@dataclass(frozen=True)
class Sent:
    """One attempt."""

    url: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def id(self) -> str:
        """The `webhook-id`."""
        return self.headers["webhook-id"]

    @property
    def event(self) -> str:
        """The event in the id."""
        return self.id.rsplit("_", 2)[1]

    @property
    def body(self) -> Any:
        """The body, read."""
        return json.loads(self.raw)


@dataclass
class FakeTransport:
    """Implements `WebhookTransport`."""

    answers: list[Answer] = field(default_factory=list)
    """For the next attempts, in order; then 204."""
    sent: list[Sent] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    """Attempts under way, by host."""
    peak: dict[str, int] = field(default_factory=dict)
    """The most there were at a time."""
    hanging: set[str] = field(default_factory=set)
    """Hosts that do not answer until they are taken out (and `wake` is called)."""
    _news: anyio.Event = field(default_factory=anyio.Event)

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Make an attempt."""
        self.sent.append(Sent(url, headers, body))
        host = host_of(url)
        self.running[host] = self.running.get(host, 0) + 1
        self.peak[host] = max(self.peak.get(host, 0), self.running[host])
        self.wake()
        try:
            while host in self.hanging:
                await self._news.wait()
        finally:
            self.running[host] -= 1
        return self.answers.pop(0) if self.answers else Answer(204)

    def wake(self) -> None:
        """Let all that wait look again."""
        news, self._news = self._news, anyio.Event()
        news.set()

    def release(self, host: str) -> None:
        """Let a hanging host answer."""
        self.hanging.discard(host)
        self.wake()

    async def until(self, count: int) -> list[Sent]:
        """Return all attempts once there are so many."""
        while len(self.sent) < count:
            await self._news.wait()
        return self.sent

    def of(self, prediction_id: str) -> list[Sent]:
        """Return the attempts for one prediction."""
        return [sent for sent in self.sent if sent.id.startswith(f"msg_{prediction_id}_")]
