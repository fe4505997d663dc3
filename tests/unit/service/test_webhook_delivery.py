"""The retry schedule: what follows an attempt. B070."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.webhook import WebhookEvent
from service.domain.webhook_delivery import (
    JITTER,
    MAX_RETRY_AFTER,
    RETRY_DELAYS,
    Answer,
    Delivery,
    after_attempt,
    retry_window,
)

NOW = datetime(2026, 12, 1, tzinfo=UTC)
NEW = Delivery("msg_p_completed_4", "p", WebhookEvent.COMPLETED, "https://h", NOW, next_at=NOW)


def test_b070_attempts_fall_on_the_schedule_and_the_last_gives_up() -> None:
    delivery, now = NEW, NOW
    moments = []
    while delivery.next_at is not None:
        now = delivery.next_at
        moments.append(now - NOW)
        delivery = after_attempt(delivery, Answer(500), now, 0)
    seconds = [0, 5, 35, 155, 455, 1355, 3155]
    assert moments == [timedelta(seconds=s) for s in seconds]
    assert moments[-1] == retry_window() and len(moments) == len(RETRY_DELAYS)
    assert delivery.given_up and not delivery.delivered and delivery.settled
    assert (delivery.attempts, delivery.last_status) == (7, 500)
    assert delivery.last_error == "the receiver answered 500"


@given(st.floats(-1, 1), st.integers(0, 5))
def test_jitter_moves_an_attempt_by_a_fifth_at_most(jitter: float, number: int) -> None:
    delivery = NEW
    for _ in range(number):
        delivery = after_attempt(delivery, Answer(503), NOW, 0)
    delay = RETRY_DELAYS[number + 1]
    after = after_attempt(delivery, Answer(503), NOW, jitter)
    assert after.next_at is not None
    assert delay * (1 - JITTER) <= after.next_at - NOW <= delay * (1 + JITTER)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_delivers(status: int) -> None:
    after = after_attempt(NEW, Answer(status), NOW, 0)
    assert (after.delivered, after.given_up, after.next_at, after.last_error) == (True, False, None, "")
    assert (after.attempts, after.attempted_at, after.id) == (1, NOW, NEW.id)


@pytest.mark.parametrize("status", [0, 100, 199, 301, 302, 307, 400, 401, 404, 429, 500, 503])
def test_anything_else_is_tried_again(status: int) -> None:
    after = after_attempt(NEW, Answer(status, "" if status else "broke"), NOW, 0)
    assert not after.settled and after.last_error


def test_410_ends_it() -> None:
    after = after_attempt(NEW, Answer(410), NOW, 0)
    assert after.given_up and after.settled


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        (None, RETRY_DELAYS[1]),
        (timedelta(seconds=1), RETRY_DELAYS[1]),
        (timedelta(minutes=1), timedelta(minutes=1)),
        (timedelta(days=9), MAX_RETRY_AFTER),
    ],
)
def test_retry_after_is_honoured_within_bounds(asked: timedelta | None, wait: timedelta) -> None:
    assert after_attempt(NEW, Answer(429, retry_after=asked), NOW, 0).next_at == NOW + wait


def test_an_error_is_one_short_line() -> None:
    after = after_attempt(NEW, Answer(error="a\r\n b\0" + "ü" * 500), NOW, 0)
    assert "\n" not in after.last_error and "\0" not in after.last_error
    assert len(after.last_error.encode()) <= 200
