"""A page token names one place, and only a token of ours is one."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.adapters.stores.page_token import decode_token, encode_token
from service.domain.errors import InvalidRequest

MOMENTS = st.datetimes(timezones=st.just(UTC))
IDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(MOMENTS, IDS)
def test_a_token_comes_back_and_needs_no_escaping(moment: datetime, prediction_id: str) -> None:
    token = encode_token(moment, prediction_id)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)
    assert decode_token(token) == (moment, prediction_id)


@given(st.text() | st.text("ABCabc012-_="))
def test_anything_else_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest, match="page_token"):
        decode_token(token)


@given(MOMENTS, IDS, st.integers(0, 200), st.characters(codec="ascii"))
def test_a_changed_token_is_refused(moment: datetime, prediction_id: str, place: int, letter: str) -> None:
    token = encode_token(moment, prediction_id)
    place %= len(token)
    changed = token[:place] + letter + token[place + 1 :]
    with contextlib.nullcontext() if changed == token else pytest.raises(InvalidRequest):
        decode_token(changed)
