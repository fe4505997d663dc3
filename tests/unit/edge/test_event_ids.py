"""SSE ids: positions in a prediction's log."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.event_ids import (
    MAX_ID_CHARS,
    MAX_PART,
    MAX_SEQUENCE,
    Cursor,
    cursor_after,
    format_id,
    parse_last_event_id,
)

CREATED = 1_796_065_285
SECONDS = st.integers(0, 10**12 - 1)
CURSORS = st.builds(Cursor, st.integers(0, MAX_SEQUENCE), st.integers(0, MAX_PART))


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        (f"{CREATED}:0", Cursor(0)),
        (f"{CREATED}:17", Cursor(17)),
        (f"{CREATED}:0.1", Cursor(0, 1)),
        (f"{CREATED}:16.2", Cursor(16, 2)),
        (f"{CREATED}:{MAX_SEQUENCE}.{MAX_PART}", Cursor(MAX_SEQUENCE, MAX_PART)),
    ],
)
def test_own_id_is_the_position_it_names(text: str, cursor: Cursor) -> None:
    assert format_id(CREATED, cursor.sequence, cursor.part) == text
    assert parse_last_event_id(text, CREATED) == cursor


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "zzz",
        "-1",
        "17",
        f"{CREATED + 1}:17",
        f"{CREATED}:",
        f"{CREATED}:-1",
        f"{CREATED}:+1",
        f"{CREATED}: 1",
        f" {CREATED}:1",
        f"{CREATED}:1\n",
        f"{CREATED}:01",
        f"0{CREATED}:1",
        f"{CREATED}:1.",
        f"{CREATED}:1.0",
        f"{CREATED}:1.01",
        f"{CREATED}:1.-1",
        f"{CREATED}:1.1.1",
        f"{CREATED}:{MAX_SEQUENCE + 1}",
        f"{CREATED}:1.{MAX_PART + 1}",
        f"{CREATED}:\u0661",
        "\x01abc",
        f"{CREATED}:1\0",
        "9" * 5000,
        f"{CREATED}:" + "1" * 5000,
    ],
)
def test_malformed_or_foreign_id_means_replay_from_the_start(text: str | None) -> None:
    assert parse_last_event_id(text, CREATED) is None


@given(SECONDS, CURSORS)
def test_id_is_short_printable_ascii_and_names_one_position(seconds: int, cursor: Cursor) -> None:
    text = format_id(seconds, cursor.sequence, cursor.part)
    assert len(text) <= MAX_ID_CHARS
    assert set(text) <= set(string.digits + ":.")
    assert parse_last_event_id(text, seconds) == cursor
    assert parse_last_event_id(text, seconds + 1) is None


@given(st.text() | st.text("019:.") | st.builds("{}:{}.{}".format, SECONDS, st.integers(), st.integers(-1)))
def test_text_that_is_understood_is_what_we_would_have_written(text: str) -> None:
    head = text.partition(":")[0]
    seconds = int(head) if head.isascii() and head.isdigit() and len(head) < 20 else CREATED
    cursor = parse_last_event_id(text, seconds)
    if cursor is not None:
        assert format_id(seconds, cursor.sequence, cursor.part) == text


def test_parts_of_an_entry_lie_between_it_and_the_one_before() -> None:
    cursors = [
        cursor_after(1, 1, 1),
        cursor_after(2, 1, 3),
        cursor_after(2, 2, 3),
        cursor_after(2, 3, 3),
        cursor_after(3, 1, 2),
        cursor_after(3, 2, 2),
    ]
    assert cursors == [Cursor(1), Cursor(1, 1), Cursor(1, 2), Cursor(2), Cursor(2, 1), Cursor(3)]
    assert cursors == sorted(set(cursors))


@given(st.lists(st.integers(1, 4), min_size=1), st.data())
def test_resuming_after_any_event_loses_and_repeats_nothing(
    parts_by_entry: list[int], data: st.DataObject
) -> None:
    events = [
        ((entry, part), cursor_after(entry, part, parts))
        for entry, parts in enumerate(parts_by_entry, start=1)
        for part in range(1, parts + 1)
    ]
    seen = data.draw(st.integers(0, len(events)))
    last_id = None
    if seen:
        cursor = events[seen - 1][1]
        last_id = format_id(CREATED, cursor.sequence, cursor.part)
    resume = parse_last_event_id(last_id, CREATED) or Cursor(0)
    rest = [content for content, _ in events if content[0] > resume.sequence][resume.part :]
    assert rest == [content for content, _ in events[seen:]]


@pytest.mark.parametrize(("part", "parts"), [(0, 1), (2, 1), (-1, 1), (1, 0)])
def test_part_outside_its_entry_is_refused(part: int, parts: int) -> None:
    with pytest.raises(ValueError, match="part must be"):
        cursor_after(1, part, parts)


def test_entry_before_the_first_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cursor_after(0, 1, 1)


@pytest.mark.parametrize(("sequence", "part"), [(-1, 0), (MAX_SEQUENCE + 1, 0), (0, -1), (0, MAX_PART + 1)])
def test_cursor_outside_the_log_cannot_be_made(sequence: int, part: int) -> None:
    with pytest.raises(ValueError, match="must be 0"):
        Cursor(sequence, part)
