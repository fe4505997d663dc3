"""The backlog: what may be tried now, and that one host does not hold up another."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from service.domain.webhook import WebhookEvent
from service.domain.webhook_backlog import Backlog
from service.domain.webhook_delivery import Answer, Delivery, after_attempt

NOW = datetime(2026, 12, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def delivery(name: str, after_s: int = 0) -> Delivery:
    return Delivery(name, "p", WebhookEvent.COMPLETED, "https://h", NOW, next_at=NOW + after_s * SECOND)


def backlog(limit: int = 100, per_host: int = 2) -> Backlog:
    return Backlog(limit=limit, per_host=per_host)


def names(taken: list[tuple[str, Delivery]]) -> list[str]:
    return [found.id for _, found in taken]


def test_each_is_taken_once_and_when_it_is_due() -> None:
    these = backlog()
    for name, after_s in (("late", 9), ("now", 0), ("soon", 5)):
        these.add(delivery(name, after_s), "h")
        these.add(delivery(name, after_s), "h")
    assert len(these) == 3 and these.next_at() == NOW
    assert names(these.take(NOW)) == ["now"]
    assert these.take(NOW) == [] and these.next_at() == NOW + 5 * SECOND
    assert names(these.take(NOW + 9 * SECOND)) == ["soon"], "two at a time for a host"


def test_a_host_that_is_full_holds_up_its_own_only() -> None:
    these = backlog()
    for number in range(4):
        these.add(delivery(f"a{number}"), "a")
    these.add(delivery("b"), "b")
    taken = these.take(NOW)
    assert names(taken) == ["a0", "a1", "b"] and these.running == 3 and these.busy
    _, first = taken[0]
    these.finished("a", first, after_attempt(first, Answer(204), NOW, 0))
    assert names(these.take(NOW)) == ["a2"]


def test_a_host_that_fails_gets_one_call_at_a_time_until_one_succeeds() -> None:
    these = backlog(per_host=3)
    for number in range(6):
        these.add(delivery(f"a{number}"), "a")
    taken = [found for _, found in these.take(NOW)]
    for found in taken:
        these.finished("a", found, after_attempt(found, Answer(500), NOW, 0))
    (_, probe), *others = these.take(NOW)
    assert others == []
    these.finished("a", probe, after_attempt(probe, Answer(204), NOW, 0))
    assert len(these.take(NOW)) == 2
    assert len(these) == 5, "the failed ones wait for their next attempt"
    assert these.next_at() == NOW + 5 * SECOND


def test_what_is_beyond_the_limit_is_turned_away_and_said() -> None:
    these = backlog(limit=2)
    for number in range(3):
        these.add(delivery(f"a{number}"), "a")
    assert len(these) == 2 and these.overflowed and not these.has_room
    taken = [found for _, found in these.take(NOW)]
    for found in taken:
        these.finished("a", found, after_attempt(found, Answer(204), NOW, 0))
    assert these.has_room and not these.busy and len(these) == 0


def test_a_settled_one_is_not_taken_in() -> None:
    these = backlog()
    these.add(replace(delivery("a"), next_at=None), "a")
    assert len(these) == 0 and these.next_at() is None


def test_failing_hosts_are_forgotten_when_there_are_many() -> None:
    these = backlog(limit=5)
    for number in range(50):
        these.add(delivery(f"a{number}"), f"host{number}")
        ((host, found),) = these.take(NOW)
        these.finished(host, found, after_attempt(found, Answer(410), NOW, 0))
    assert len(these._hosts) <= 6
