"""Cancel-After: its grammar and bounds."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edge.protocol.durations import DurationError, parse_cancel_after

VECTORS = Path(__file__).parents[2] / "vectors" / "durations.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text("utf-8"))["cases"]
ACCEPTED = [case for case in CASES if case["seconds"] is not None]
REFUSED = [case["text"] for case in CASES if case["seconds"] is None]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case["text"])
def test_accepted_text_means_its_seconds(case: dict[str, Any]) -> None:
    assert parse_cancel_after(case["text"]) == timedelta(seconds=case["seconds"])


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(DurationError):
        parse_cancel_after(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), ("4s", "at least 5 seconds"), ("25h", "at most 24 hours"), ("1x", "order")],
)
def test_message_says_what_to_change_and_repeats_nothing(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_cancel_after(text)
    assert str(caught.value).startswith("Cancel-After ")


@given(st.integers(0, 30), st.integers(0, 2000), st.integers(0, 100_000))
def test_units_add_up(hours: int, minutes: int, seconds: int) -> None:
    expected = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    assume(timedelta(seconds=5) <= expected <= timedelta(hours=24))
    assert parse_cancel_after(f"{hours}h{minutes}m{seconds}s") == expected


@given(st.text() | st.text("0159hms"))
def test_any_text_is_within_bounds_or_refused(text: str) -> None:
    try:
        duration = parse_cancel_after(text)
    except DurationError:
        return
    assert timedelta(seconds=5) <= duration <= timedelta(hours=24)


def test_number_of_hostile_length_is_refused_as_too_long() -> None:
    with pytest.raises(DurationError, match="at most"):
        parse_cancel_after("9" * 16_384)
