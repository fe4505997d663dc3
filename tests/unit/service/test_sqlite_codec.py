"""Everything a store is given comes back from its stored form as it was."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.adapters.stores.sqlite_codec import (
    decode_entries,
    decode_labels,
    encode_event,
    encode_labels,
    from_us,
    to_us,
)
from service.adapters.stores.sqlite_request_codec import decode_request, encode_request
from service.domain import events, request

MOMENTS = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
IDS = st.integers(0, request.MAX_TOKEN_ID)
NUMBERS = st.floats(allow_nan=False)
BOUNDS: Mapping[type, st.SearchStrategy[Any]] = {str: TEXT, float: NUMBERS, datetime: MOMENTS}
for kind, strategy in BOUNDS.items():
    st.register_type_strategy(kind, strategy)
st.register_type_strategy(int, st.integers(0, request.MAX_SEED))


def any_of(union: object) -> st.SearchStrategy[Any]:
    """Return values of every member of a union, built from the field types."""
    return st.one_of([st.from_type(kind) for kind in get_args(union)])


@settings(max_examples=40)
@given(st.lists(any_of(events.Event), max_size=3), st.integers(1, 10**9))
def test_every_kind_of_event_comes_back(log: list[events.Event], first: int) -> None:
    entries = tuple(events.Entry(first + i, event) for i, event in enumerate(log))
    rows = [(entry.sequence, encode_event(entry.event)) for entry in entries]
    assert decode_entries(rows) == entries


@given(st.from_type(request.GenerationRequest))
def test_every_kind_of_request_comes_back(asked: request.GenerationRequest) -> None:
    assert decode_request(encode_request(asked)) == asked


@given(any_of(request.Prompt), st.none() | any_of(request.Constraint))
def test_every_prompt_and_constraint_comes_back(
    prompt: request.Prompt, constraint: request.Constraint | None
) -> None:
    asked = request.GenerationRequest(prompt, constraint=constraint)
    assert decode_request(encode_request(asked)) == asked


@given(st.lists(st.tuples(TEXT, TEXT)).map(tuple))
def test_labels_come_back(labels: tuple[tuple[str, str], ...]) -> None:
    assert decode_labels(encode_labels(labels)) == labels


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_times_come_back_to_the_microsecond(moment: datetime) -> None:
    if datetime(1, 1, 2, tzinfo=UTC) < moment < datetime(9999, 12, 30, tzinfo=UTC):
        assert from_us(to_us(moment)) == moment


def test_a_request_written_before_a_field_existed_can_be_read() -> None:
    old = b"\x83\xa6prompt\x82\xa4type\xa4text\xa4text\xa1x\xa8sampling\x80\xa8stopping\x80"
    assert decode_request(old) == request.GenerationRequest(request.TextPrompt("x"))


def test_an_output_written_before_a_field_existed_can_be_read() -> None:
    assert decode_entries([(3, b"\x92\x03\xa1x")]) == (events.Entry(3, events.Output("x")),)


def test_half_a_character_is_a_bug() -> None:
    with pytest.raises(ValueError):
        encode_event(events.Output("\ud83d"))
    with pytest.raises(ValueError):
        encode_request(request.GenerationRequest(request.TextPrompt("\ud83d")))
