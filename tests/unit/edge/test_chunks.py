"""Pieces of output text: never what a client takes for a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.chunks import can_join, split_piece

SCHEMES = ("https:", "http:", "data:")
TEXT = st.text() | st.builds(
    str.__add__,
    st.sampled_from(["https", "http", "data", "HTTPS", "Da", "h", "d"]),
    st.text(":/sta"),
)


def is_dangerous(piece: str) -> bool:
    return piece.lower().startswith(SCHEMES)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", ()),
        ("a", ("a",)),
        (" onion", (" onion",)),
        ("\n", ("\n",)),
        ("h", ("h",)),
        ("house", ("house",)),
        ("data", ("data",)),
        ("data: x", ("d", "ata: x")),
        ("https://a.b/c", ("h", "ttps://a.b/c")),
        ("http://a.b/c", ("h", "ttp://a.b/c")),
        ("HTTPS:", ("H", "TTPS:")),
        ("Data:,", ("D", "ata:,")),
        ("https:https:", ("h", "ttps:https:")),
        (" https://a.b", (" https://a.b",)),
        ("see https://a.b", ("see https://a.b",)),
        ("http\u017f:", ("http\u017f:",)),
        ("httpss:", ("httpss:",)),
    ],
)
def test_only_text_that_starts_like_a_link_is_cut(text: str, pieces: tuple[str, ...]) -> None:
    assert split_piece(text) == pieces


@given(TEXT)
def test_pieces_join_to_the_text_and_none_is_empty_or_dangerous(text: str) -> None:
    pieces = split_piece(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert not any(is_dangerous(piece) for piece in pieces)


@given(st.lists(TEXT))
def test_pieces_merged_where_allowed_keep_the_text_and_stay_harmless(texts: list[str]) -> None:
    events: list[str] = []
    for piece in (piece for text in texts for piece in split_piece(text)):
        if events and can_join(events[-1], piece):
            events[-1] += piece
        else:
            events.append(piece)
    assert "".join(events) == "".join(texts)
    assert not any(is_dangerous(event) for event in events)


@pytest.mark.parametrize(
    ("head", "tail", "allowed"),
    [
        ("h", "ttps://a", False),
        ("http", "s:", False),
        ("https", ":", False),
        ("data", ":x", False),
        ("D", "ATA:", False),
        ("h", "ouse", True),
        ("https", "x:", True),
        ("a", "https:", True),
        ("", "a", True),
        ("httpsx", ":", True),
    ],
)
def test_join_is_refused_only_when_it_would_start_like_a_link(head: str, tail: str, *, allowed: bool) -> None:
    assert can_join(head, tail) is allowed
