"""The throttle, on a clock of the test. B064."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.events import (
    Accepted,
    Completed,
    Entry,
    Event,
    FinishReason,
    Log,
    Output,
    Started,
    Status,
)
from service.domain.webhook import Webhook, WebhookEvent
from service.domain.webhook_calls import INTERVAL_S, AskAgain, CallNow, Idle, Over, WebhookCalls

NOW = datetime(2026, 12, 1, tzinfo=UTC)
START, OUTPUT, LOGS, COMPLETED = WebhookEvent
END = Completed(NOW, Status.SUCCEEDED, FinishReason.STOP)


def calls(*events: WebhookEvent) -> WebhookCalls:
    return WebhookCalls(Webhook("https://h", events))


def note(these: WebhookCalls, *events: Event) -> None:
    for event in events:
        these.note(Entry(1, event))


def test_start_is_told_at_once_and_once() -> None:
    these = calls()
    note(these, Accepted(NOW))
    assert these.next(0) == Idle()
    note(these, Started(NOW))
    assert these.next(0) == CallNow(START)
    these.finished()
    assert these.next(0) == Idle()


def test_one_call_at_a_time() -> None:
    these = calls()
    note(these, Started(NOW), Output("a"))
    assert these.next(0) == CallNow(START)
    assert these.next(9) == Idle()
    these.finished()
    assert these.next(9) == CallNow(OUTPUT)


def test_output_is_coalesced_and_logs_have_a_measure_of_their_own() -> None:
    these = calls(OUTPUT, LOGS)
    note(these, Output("a"))
    assert these.next(10) == CallNow(OUTPUT)
    these.finished()
    note(these, Output("b"), Output("c"), Log("l"))
    assert these.next(10.1) == CallNow(LOGS)
    these.finished()
    assert these.next(10.2) == AskAgain(10 + INTERVAL_S)
    assert these.next(10.5) == CallNow(OUTPUT)
    these.finished()
    assert these.next(99) == Idle()


def test_an_output_without_text_is_no_news() -> None:
    these = calls()
    note(these, Output(""))
    assert these.next(0) == Idle()


def test_the_end_replaces_output_but_not_start_when_it_is_told() -> None:
    these = calls(START, OUTPUT, COMPLETED)
    note(these, Started(NOW), Output("a"), END)
    assert these.next(0) == CallNow(START)
    these.finished()
    assert these.next(0) == Over()


def test_without_completed_the_last_output_is_told_after_the_end() -> None:
    these = calls(OUTPUT)
    note(these, Output("a"))
    assert these.next(0) == CallNow(OUTPUT)
    note(these, Output("b"), END)
    these.finished()
    assert these.next(0.1) == AskAgain(0.5)
    assert these.next(0.5) == CallNow(OUTPUT)
    assert these.next(0.6) == Idle()
    these.finished()
    assert these.next(0.6) == Over()


@pytest.mark.parametrize("event", [START, OUTPUT, LOGS])
def test_a_filter_keeps_the_others_out(event: WebhookEvent) -> None:
    these = calls(event)
    note(these, Started(NOW), Output("a"), Log("l"), END)
    assert these.next(0) == CallNow(event)
    these.finished()
    assert these.next(99) == Over()


STEPS = st.lists(
    st.tuples(
        st.floats(0, 0.7),  # time that passes
        st.sampled_from([None, Output("x"), Output("x"), Log("l")]),
        st.floats(0, 1.2),  # how long a call lasts, if one is made
    ),
    max_size=60,
)
FILTERS = st.sets(st.sampled_from(list(WebhookEvent)), min_size=1)


@given(STEPS, FILTERS)
def test_never_too_often_and_never_without_the_last_state(
    steps: list[tuple[float, Event | None, float]], events: set[WebhookEvent]
) -> None:
    these = calls(*events)
    now_s = busy_until_s = 0.0
    calling = False
    made: list[tuple[float, WebhookEvent]] = []
    noted_s: dict[WebhookEvent, float] = {}

    def turn() -> None:
        nonlocal calling, busy_until_s
        if calling and now_s >= busy_until_s:
            these.finished()
            calling = False
        due = these.next(now_s)
        if isinstance(due, CallNow):
            assert not calling
            made.append((now_s, due.event))
            calling, busy_until_s = True, now_s + lasts_s

    lasts_s = 0.1
    note(these, Started(NOW))
    turn()
    for passes_s, event, call_s in steps:
        now_s += passes_s
        lasts_s = call_s
        if event is not None:
            note(these, event)
            noted_s[OUTPUT if isinstance(event, Output) else LOGS] = now_s
        turn()
    note(these, END)
    for _ in range(20):
        turn()
        now_s += 0.5
    assert these.next(now_s) == Over()
    for event in (OUTPUT, LOGS):
        times = [at_s for at_s, told in made if told is event]
        assert all(b - a >= INTERVAL_S - 1e-9 for a, b in pairwise(times))
        if event in events and COMPLETED not in events and event in noted_s:
            assert times and times[-1] >= noted_s[event], "the last state was told"
        assert times == [] or event in events
    assert [told for _, told in made].count(START) == (START in events)
    assert (OUTPUT not in noted_s) or (OUTPUT not in events) or COMPLETED in events or made
