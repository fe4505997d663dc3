"""Characters out of bytes that are cut anywhere: nothing lost, nothing early, nothing late."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.characters import CharacterAssembler

# One byte of each class that Unicode table 3-7 tells apart, both ends of each range.
_CLASSES = bytes.fromhex("41 80 8f 90 9f a0 bf c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")

_FRAGMENTS = st.sampled_from(
    [
        *(text.encode() for text in ("a", "é", "한", "漢", "😀", "\u200d", "👩‍👩‍👧", "\ufffd")),
        *(
            b"\xff",
            b"\x80",
            b"\xf0\x9f",
            b"\xf0\x9f\x98",
            b"\xed\xa0",
            b"\xed\xa0\x80",
            b"\xe0\x80",
        ),
    ]
)
_BYTES = st.lists(_FRAGMENTS | st.binary(max_size=3), max_size=12).map(b"".join)


def _cut(data: bytes, places: set[int]) -> list[bytes]:
    borders = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(borders)]


@given(_BYTES, st.sets(st.integers(0, 60)))
def test_any_cut_gives_the_text_of_the_whole(data: bytes, places: set[int]) -> None:
    assembler = CharacterAssembler()
    text = "".join(assembler.feed(piece) for piece in _cut(data, places)) + assembler.flush()
    assert text == data.decode("utf-8", "replace")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_only_a_tail_that_can_still_become_a_character_is_held(length: int) -> None:
    for values in itertools.product(_CLASSES, repeat=length):
        data = bytes(values)
        assembler = CharacterAssembler()
        text = "".join(assembler.feed(data[at : at + 1]) for at in range(length))
        whole = data.decode("utf-8", "replace")
        assert text + "\ufffd" * bool(assembler.pending) == whole
        # After an incomplete character some continuation byte joins it and adds no character.
        grown = [(data + more).decode("utf-8", "replace") for more in (b"\x80", b"\xbf")]
        assert bool(assembler.pending) is (len(whole) in map(len, grown)), data
        assert data.endswith(assembler.pending)


@given(_BYTES, _BYTES)
def test_continues_tells_whether_the_next_byte_joins_the_held_character(before: bytes, piece: bytes) -> None:
    assembler = CharacterAssembler()
    assembler.feed(before)
    held = assembler.pending
    # The whole decoded: a byte that joins adds no character of its own.
    grown = len((before + piece[:1]).decode("utf-8", "replace"))
    joins = bool(held and piece) and grown == len(before.decode("utf-8", "replace"))
    assert assembler.continues(piece) is joins
    assert assembler.pending == held


@pytest.mark.parametrize("tail", [b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf0", b"\xe6\xbc", b"\xc3"])
def test_a_cut_off_character_at_the_end_is_one_replacement(tail: bytes) -> None:
    """B101."""
    assembler = CharacterAssembler()
    assert assembler.feed(b"ok" + tail) == "ok"
    assert assembler.flush() == "\ufffd"
    assert assembler.flush() == ""


def test_a_half_surrogate_is_replaced_without_waiting_for_a_third_byte() -> None:
    assembler = CharacterAssembler()
    assert assembler.feed(b"\xed") == ""
    assert assembler.feed(b"\xa0") == "\ufffd\ufffd"
    assert assembler.feed(b"\x80") == "\ufffd"


def test_leading_blanks_are_kept() -> None:
    """B104."""
    assembler = CharacterAssembler()
    assert [assembler.feed(piece) for piece in (b" leading", b"  x", b"")] == [
        " leading",
        "  x",
        "",
    ]


def test_nothing_is_held_after_complete_text() -> None:
    assembler = CharacterAssembler()
    assert assembler.feed("漢😀".encode()) == "漢😀"
    assert assembler.pending == b""
    assert assembler.flush() == ""
