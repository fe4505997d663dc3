"""The text of API tokens: `edge.auth.token_format`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.auth.token_format import (
    ID_ALPHABET,
    ID_CHARS,
    SECRET_ALPHABET,
    SECRET_CHARS,
    ApiToken,
    checksum,
    is_token_id,
    parse_token,
)

IDS = st.text(ID_ALPHABET, min_size=ID_CHARS, max_size=ID_CHARS)
SECRETS = st.text(SECRET_ALPHABET, min_size=SECRET_CHARS, max_size=SECRET_CHARS)
TOKEN = ApiToken("0123abcd", "A" * 32)


@given(IDS, SECRETS)
def test_a_token_is_read_back_from_its_text(token_id: str, secret: str) -> None:
    token = ApiToken(token_id, secret)
    assert re.fullmatch(r"tr_[0-9a-z]{8}_[0-9A-Za-z]{32}_[0-9A-Za-z]{6}", token.text)
    assert parse_token(token.text) == token
    assert is_token_id(token_id)


def test_the_form_never_changes() -> None:
    assert TOKEN.text == "tr_0123abcd_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA_" + checksum("tr_0123abcd_" + "A" * 32)
    assert checksum("") == "000000" and checksum("tr_0123abcd_" + "A" * 32) == TOKEN.text[-6:]


@given(IDS, SECRETS, st.integers(0, 55), st.characters(max_codepoint=0x17F))
def test_one_wrong_character_makes_it_none(token_id: str, secret: str, place: int, character: str) -> None:
    text = ApiToken(token_id, secret).text
    place %= len(text)
    changed = text[:place] + character + text[place + 1 :]
    assert (parse_token(changed) is None) == (changed != text)


@given(st.text())
def test_any_text_is_read_or_none(text: str) -> None:
    assert parse_token(text) is None


@pytest.mark.parametrize(
    "wrong", ["", TOKEN.text + "\n", " " + TOKEN.text, TOKEN.text.upper(), TOKEN.text[:-1]]
)
def test_nothing_stands_around_it(wrong: str) -> None:
    assert parse_token(wrong) is None


def test_no_log_holds_one_by_accident() -> None:
    assert TOKEN.secret not in repr(TOKEN) and TOKEN.secret not in f"{TOKEN}"
    assert not is_token_id("0123ABCD") and not is_token_id("0123abcd\n")
