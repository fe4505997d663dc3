"""Special tokens are found in texts as one after another would be, however many there are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.adapters.prompts.placeholders import Placeholders, SpecialTokens, free_mark, in_ascii
from service.adapters.prompts.special_ids import Segment

WORDS = st.text("<|ab>.*(", max_size=6)


@given(st.lists(WORDS, max_size=8), st.lists(WORDS, max_size=8))
def test_the_longest_token_is_found_first_at_each_place(tokens: list[str], parts: list[str]) -> None:
    text = "".join(parts + tokens)
    longest_first = sorted({token for token in tokens if token}, key=lambda token: (-len(token), token))
    plain = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
    assert SpecialTokens(tokens).pattern.findall(text) == plain.findall(text)


@given(st.lists(WORDS.filter(bool), min_size=1, max_size=5), WORDS)
def test_the_edges_of_a_text_are_those_of_some_token(tokens: list[str], body: str) -> None:
    head, tail = SpecialTokens(tokens).edges(body)
    longest = max(map(len, tokens))
    if body and len(body) < longest and any(body in token for token in tokens):
        assert (head, tail) == (len(body), 0)
        return
    heads = [
        n for n in range(1, len(body) + 1) if any(t != body[:n] and t.endswith(body[:n]) for t in tokens)
    ]
    assert head == max(heads, default=0)
    rest = body[head:]
    tails = [
        n for n in range(1, len(rest) + 1) if any(t != rest[-n:] and t.startswith(rest[-n:]) for t in tokens)
    ]
    assert tail == max(tails, default=0)


def test_equal_texts_have_equal_placeholders_and_others_do_not() -> None:
    made = Placeholders(SpecialTokens(["<s>", "<e>"]), "#", edges=False)
    assert made.text("a<s>") == made.text("a<s>") != made.text("a<e>")


def test_the_parts_come_back_in_their_order() -> None:
    made = Placeholders(SpecialTokens(["<s>"]), "#", edges=False)
    assert made.segments("x" + made.text("a<s>b")) == (
        Segment("xa", special=True),
        Segment("<s>", special=False),
        Segment("b", special=True),
    )


@pytest.mark.parametrize("text", ["", "\ue0f1", in_ascii("\ue0f1"), "\ue0f1\ue0f2\ue0f1"])
def test_a_mark_stands_in_no_text(text: str) -> None:
    mark = free_mark([text, "another"])
    assert mark not in text and in_ascii(mark) not in text
