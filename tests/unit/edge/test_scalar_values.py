"""Strings that UTF-8 can carry."""

from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.scalar_values import replace_surrogates

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


@given(ANY_TEXT)
def test_result_can_be_encoded_and_differs_only_where_it_had_to(text: str) -> None:
    replaced = replace_surrogates(text)
    replaced.encode()
    assert len(replaced) == len(text)
    for before, after in zip(text, replaced, strict=True):
        assert after == ("\ufffd" if "\ud800" <= before <= "\udfff" else before)


@given(ANY_TEXT, ANY_TEXT)
def test_replacing_piece_by_piece_is_replacing_the_whole(head: str, tail: str) -> None:
    assert replace_surrogates(head) + replace_surrogates(tail) == replace_surrogates(head + tail)
