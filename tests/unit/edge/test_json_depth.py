"""JSON nesting, checked before parsing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.json_depth import is_within_depth

STRINGS = st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from('[]{}"\\')))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner) | st.dictionaries(STRINGS, inner),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
        case _:
            return 0


def depth_read_before_an_error(text: str) -> int:
    """Walk `text` character by character as far as its brackets allow a parser to get."""
    open_brackets: list[str] = []
    deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == "\\":
            return deepest
        elif character == '"':
            in_string = True
        elif character in "[{":
            open_brackets.append(character)
            deepest = max(deepest, len(open_brackets))
        elif character in "]}" and (
            not open_brackets or open_brackets.pop() != {"]": "[", "}": "{"}[character]
        ):
            return deepest
    return deepest


@given(VALUES, st.booleans())
def test_depth_of_a_json_text_is_exact(value: Any, ascii_only: bool) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    depth = depth_of(value)
    assert is_within_depth(raw, depth)
    assert depth == 0 or not is_within_depth(raw, depth - 1)


@given(st.text(alphabet='[]{}"\\a,:'), st.integers(0, 4))
def test_malformed_text_deeper_than_the_limit_is_never_let_through(text: str, limit: int) -> None:
    if depth_read_before_an_error(text) > limit:
        assert not is_within_depth(text.encode(), limit)


@given(st.binary(), st.integers(0, 40))
def test_no_bytes_raise(raw: bytes, limit: int) -> None:
    is_within_depth(raw, limit)


@pytest.mark.parametrize(
    ("text", "depth"),
    [
        ("", 0),
        ("1", 0),
        ('"[[["', 0),
        ("[]", 1),
        ('{"a":[]}', 2),
        (r'["\"[[[", []]', 2),
        (r'["\\", [[]]]', 3),
        (r'["\\\"[", []]', 2),
        ('["[""["[]', 2),
        ('[[["', 3),
        ("[[[][]", 3),
    ],
)
def test_strings_and_escapes_hide_brackets(text: str, depth: int) -> None:
    assert is_within_depth(text.encode(), depth)
    assert depth == 0 or not is_within_depth(text.encode(), depth - 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"input":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b"[" * 33 + b"]" * 33,
        b"[" + b"[]," * 100_000 + b"[" * 32,
    ],
)
def test_hostile_nesting_is_refused(raw: bytes) -> None:
    assert not is_within_depth(raw, 32)


@pytest.mark.parametrize(
    "raw", [b"[" * 32 + b"]" * 32, b"[" + b"[]," * 100_000 + b"[]]", b'"' + b"[" * 100_000 + b'"']
)
def test_wide_text_and_brackets_in_strings_are_let_through(raw: bytes) -> None:
    assert is_within_depth(raw, 32)


def test_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        is_within_depth(b"1", -1)
