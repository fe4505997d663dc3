"""What the link brings for one stream: order, holes, and how much may wait."""

from __future__ import annotations

from edge.upstream.events import OutputText
from edge.upstream.link import MAX_WAITING_CHARS, MAX_WAITING_EVENTS, Followed


def output(sequence: int, text: str = "x") -> OutputText:
    return OutputText(sequence, sequence, text, 1)


def test_events_are_taken_once_and_in_order():
    followed = Followed(1, after_sequence=2)
    assert followed.put(output(3), 3) and followed.put(output(4), 4)
    assert followed.news.is_set()
    assert [event.sequence for event in followed.take()] == [3, 4]
    assert followed.take() == () and not followed.news.is_set()


def test_a_hole_or_a_repeat_is_refused_and_not_shown():
    followed = Followed(1, after_sequence=2)
    assert not followed.put(output(4), 4)
    assert not followed.put(output(2), 2)
    assert followed.take() == ()


def test_a_reader_that_falls_behind_is_told_apart_by_size_and_by_number():
    followed = Followed(1, after_sequence=0)
    assert not followed.put(output(1, "x" * (MAX_WAITING_CHARS + 1)), 1)
    followed = Followed(1, after_sequence=0)
    fits = [followed.put(output(n), n) for n in range(1, MAX_WAITING_EVENTS + 2)]
    assert all(fits[:-1]) and not fits[-1]
    followed.take()
    assert followed.put(output(MAX_WAITING_EVENTS + 2), MAX_WAITING_EVENTS + 2)


def test_what_came_before_the_loss_is_still_there():
    followed = Followed(1, after_sequence=0)
    followed.put(output(1), 1)
    followed.lose()
    assert followed.news.is_set() and len(followed.take()) == 1 and followed.is_lost
    assert followed.news.is_set()
