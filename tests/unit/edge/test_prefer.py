"""Prefer: what a caller asked for, clamped to what we grant."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.prefer import Preference, hold, parse_prefer

VECTORS = Path(__file__).parents[2] / "vectors" / "prefer.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text("utf-8"))["cases"]

LINES = st.text() | st.builds("wait{}{}".format, st.sampled_from(["", "=", '="']), st.text('0159.",; x'))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_header_lines_mean_what_the_vectors_say(case: dict[str, Any]) -> None:
    wait = None if case["wait_s"] is None else timedelta(seconds=case["wait_s"])
    expected = Preference(wait, case["respond_async"], case["applied"])
    assert parse_prefer(case["headers"]) == expected


@given(st.lists(LINES, max_size=3))
def test_any_text_gives_a_wait_within_bounds_or_none(lines: list[str]) -> None:
    preference = parse_prefer(lines)
    assert (preference.wait is None) == (preference.wait_applied is None)
    if preference.wait is not None and preference.wait_applied is not None:
        assert timedelta(seconds=1) <= preference.wait <= timedelta(seconds=60)
        assert preference.wait % timedelta(seconds=1) == timedelta(0)
        seconds = preference.wait // timedelta(seconds=1)
        assert preference.wait_applied in ("wait", f"wait={seconds}")


@pytest.mark.parametrize(
    ("wait_s", "hold_s"), [(1, 0.9), (2, 1.8), (5, 4.5), (7.5, 6.75), (10, 9.25), (60, 59.25)]
)
def test_hold_ends_a_margin_before_the_wait(wait_s: float, hold_s: float) -> None:
    assert hold(timedelta(seconds=wait_s)) == timedelta(seconds=hold_s)


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(seconds=60)))
def test_hold_is_at_least_nine_tenths_and_within_a_second_of_the_wait(wait: timedelta) -> None:
    held = hold(wait)
    assert wait * 0.9 - timedelta(microseconds=1) <= held < wait
    assert wait - held <= timedelta(seconds=1)


@pytest.mark.parametrize("wait", [timedelta(0), timedelta(seconds=-1)])
def test_hold_refuses_a_wait_that_is_not_positive(wait: timedelta) -> None:
    with pytest.raises(ValueError, match="positive"):
        hold(wait)
