"""Stream tokens: who may read which stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.replicate.tokens import StreamTokens
from tests.support.records import PREDICTION_ID

TOKENS = StreamTokens(b"0123456789abcdef")


def test_a_token_opens_its_own_stream_on_every_edge_with_the_secret() -> None:
    token = TOKENS.issue(PREDICTION_ID)
    assert len(token) == 52
    assert StreamTokens(b"0123456789abcdef").find_prediction_id(token) == PREDICTION_ID


@given(position=st.integers(0, 51), letter=st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_a_changed_token_opens_nothing(position: int, letter: str) -> None:
    token = TOKENS.issue(PREDICTION_ID)
    changed = token[:position] + letter + token[position + 1 :]
    assert TOKENS.find_prediction_id(changed) == (PREDICTION_ID if changed == token else None)


@given(st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True))
def test_a_chosen_id_has_a_token_too(prediction_id: str) -> None:
    token = TOKENS.issue(prediction_id)
    assert TOKENS.find_prediction_id(token) == prediction_id
    assert ("." in token) == (len(prediction_id) != 26 or "-" in prediction_id)
    for changed in (token + "a", token[:-1], "a" + token, token.replace(".", "")):
        assert TOKENS.find_prediction_id(changed) in (None, prediction_id if changed == token else None)


@given(st.text())
def test_other_text_opens_nothing(text: str) -> None:
    assert TOKENS.find_prediction_id(text) is None


def test_another_secret_opens_nothing() -> None:
    assert StreamTokens(b"fedcba9876543210").find_prediction_id(TOKENS.issue(PREDICTION_ID)) is None


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        StreamTokens(b"short")
