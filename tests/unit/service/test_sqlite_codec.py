"""Everything a store is given comes back from its stored form as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import EnumType
from typing import Any, get_args, get_origin, get_type_hints

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

BASIC: Mapping[object, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    bool: st.booleans(),
    bytes: st.binary(max_size=9),
    datetime: st.datetimes(max_value=datetime(9000, 1, 1), timezones=st.just(UTC)),
    float: st.floats(allow_nan=False),
    int: st.integers(0, request.MAX_SEED),
    str: st.text(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a domain type, every field filled, so that a new field is tried as well."""
    if kind in BASIC:
        return BASIC[kind]
    if isinstance(kind, type) and is_dataclass(kind):
        return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})
    if isinstance(kind, EnumType):
        return st.sampled_from(list(kind))
    parts = [values(part) for part in get_args(kind) if part is not ...]
    if get_origin(kind) is not tuple:
        return st.one_of(parts)
    return st.lists(parts[0], max_size=3).map(tuple) if ... in get_args(kind) else st.tuples(*parts)


@settings(max_examples=40)
@given(st.lists(values(events.Event), max_size=3), st.integers(1, 10**9))
def test_every_kind_of_event_comes_back(log: list[events.Event], first: int) -> None:
    entries = tuple(events.Entry(first + i, event) for i, event in enumerate(log))
    rows = [(entry.sequence, encode_event(entry.event)) for entry in entries]
    assert decode_entries(rows) == entries


@given(values(request.GenerationRequest))
def test_every_kind_of_request_comes_back(asked: request.GenerationRequest) -> None:
    assert decode_request(encode_request(asked)) == asked


@given(values(request.Prompt), st.none() | values(request.Constraint))
def test_every_prompt_and_constraint_comes_back(
    prompt: request.Prompt, constraint: request.Constraint | None
) -> None:
    asked = request.GenerationRequest(prompt, constraint=constraint)
    assert decode_request(encode_request(asked)) == asked


@given(values(tuple[tuple[str, str], ...]))
def test_labels_come_back(labels: tuple[tuple[str, str], ...]) -> None:
    assert decode_labels(encode_labels(labels)) == labels


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_times_come_back_to_the_microsecond(moment: datetime) -> None:
    if datetime(1, 1, 2, tzinfo=UTC) < moment < datetime(9999, 12, 30, tzinfo=UTC):
        assert from_us(to_us(moment)) == moment


def test_a_request_written_before_a_field_existed_can_be_read() -> None:
    old = b"\x83\xa6prompt\x82\xa4type\xa4text\xa4text\xa1x\xa8sampling\x80\xa8stopping\x80"
    assert decode_request(old) == request.GenerationRequest(request.TextPrompt("x"))


def test_a_chat_written_before_there_were_tools_can_be_read_and_is_still_written_so() -> None:
    chat = request.ChatPrompt((request.ChatMessage("system", "s"), request.ChatMessage("user", "x")))
    old = bytes.fromhex(
        "86a670726f6d707482a474797065a463686174a86d657373616765739292a673797374656da17392a475736572a178"
    )
    written = encode_request(request.GenerationRequest(chat))
    assert written.startswith(old)
    assert decode_request(b"\x83" + old[1:] + b"\xa8sampling\x80\xa8stopping\x80") == (
        request.GenerationRequest(chat)
    )


def test_an_output_written_before_a_field_existed_can_be_read() -> None:
    assert decode_entries([(3, b"\x92\x03\xa1x")]) == (events.Entry(3, events.Output("x")),)


def test_half_a_character_is_a_bug() -> None:
    with pytest.raises(ValueError):
        encode_event(events.Output("\ud83d"))
    with pytest.raises(ValueError):
        encode_request(request.GenerationRequest(request.TextPrompt("\ud83d")))
