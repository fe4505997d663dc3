"""The shared prediction object: what is written twice is the same, and a context never breaks it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.chunks import split_piece
from edge.protocol.timestamps import format_timestamp
from protos import replicate_object
from protos.replicate_object import InputTexts, PredictionFacts, encode, prediction_object, read_context

FACTS = PredictionFacts("abc", "a/b", "succeeded", datetime(2026, 12, 1, tzinfo=UTC), InputTexts("x"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text() | st.text(alphabet="htpsdaHTPSDA:/\n "))
def test_pieces_are_those_of_the_streams(text: str) -> None:
    assert replicate_object.split_piece(text) == split_piece(text)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_are_those_of_other_answers(moment: datetime) -> None:
    assert replicate_object.format_timestamp(moment) == format_timestamp(moment)


def test_urls_get_the_id_and_hold_strings_only() -> None:
    context = {"urls": {"get": "https://h/{id}", "web": "https://h/p/{id}/{id}", "stream": None, "x": 5}}
    assert prediction_object(FACTS, context)["urls"] == {"get": "https://h/abc", "web": "https://h/p/abc/abc"}


@given(JSON)
def test_any_context_gives_an_object(value: object) -> None:
    context = read_context(json.dumps(value))
    members = prediction_object(FACTS, context)
    assert isinstance(members["urls"], dict)
    assert json.loads(encode(members)).keys() >= {"id", "status", "urls", "output"}


@pytest.mark.parametrize("depth", [100, 250, 251, 252, 253, 254, 255, 300, 1023, 1024, 5000])
def test_depth_breaks_nothing(depth: int) -> None:
    deep = '{"a":' + "[" * depth + "]" * depth + "}"
    labels = ((replicate_object.INPUT_LABEL, deep),)
    assert encode(prediction_object(replace(FACTS, labels=labels), read_context(deep)))


@given(st.text())
def test_any_text_is_a_context_or_none(text: str) -> None:
    assert isinstance(read_context(text), dict)
