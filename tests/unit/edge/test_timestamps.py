"""Timestamps: one fixed form."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.timestamps import format_timestamp

KOLKATA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 11, 30, 18, 47, 8, 234000, UTC), "2026-11-30T18:47:08.234000Z"),
        (datetime(2026, 11, 30, 18, 47, 8, 0, UTC), "2026-11-30T18:47:08.000000Z"),
        (datetime(2026, 11, 30, 18, 47, 8, 500000, UTC), "2026-11-30T18:47:08.500000Z"),
        (datetime(2026, 12, 1, 0, 17, 8, 1, KOLKATA), "2026-11-30T18:47:08.000001Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_form_is_fixed_and_in_utc(moment: datetime, text: str) -> None:
    assert format_timestamp(moment) == text


@given(st.datetimes(timezones=st.just(UTC)))
def test_text_has_27_characters_and_means_the_same_moment(moment: datetime) -> None:
    text = format_timestamp(moment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert datetime.fromisoformat(text) == moment


def test_moment_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        format_timestamp(datetime(2026, 1, 1))


def test_moment_outside_the_years_in_utc_is_refused() -> None:
    with pytest.raises(ValueError, match="years 1 to 9999"):
        format_timestamp(datetime(1, 1, 1, tzinfo=KOLKATA))
