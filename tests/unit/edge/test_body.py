"""JSON bodies: what is taken, and that every refusal is a 400 that repeats nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.http.body import parse_json
from edge.http.problem_responses import ProblemError

BAD = [
    b"",
    b"   \n",
    b"\xef\xbb\xbf",
    b"{",
    b'{"a":1}x',
    b"{'a':1}",
    b'{"a":NaN}',
    b'{"a":Infinity}',
    b'{"a":1e400}',
    b'{"a":"\\ud800"}',
    b'{"prompt":"\xff\xfe"}',
    '{"a":1}'.encode("utf-16"),
    '{"a":"é"}'.encode("latin-1"),
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
    b"[" * 20_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"input":' * 33 + b"1" + b"}" * 33,
    b'{"a":1,}',
    b"nul",
]


@pytest.mark.parametrize("raw", BAD, ids=range(len(BAD)))
def test_what_is_no_json_is_a_400(raw: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        parse_json(raw)
    problem = caught.value.problem
    assert problem.status == 400 and problem.title == "Malformed JSON"


def test_the_position_is_told() -> None:
    with pytest.raises(ProblemError) as caught:
        parse_json(b'{"a":1,\n  x}')
    assert "line 2, column 3" in caught.value.problem.detail
    with pytest.raises(ProblemError) as caught:
        parse_json(b'{"a":"\xff"}')
    assert "byte 6" in caught.value.problem.detail


def test_a_byte_order_mark_is_accepted_and_the_last_duplicate_wins() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a":1,"a":2}') == {"a": 2}


def test_depth_up_to_the_limit_is_taken() -> None:
    assert parse_json(b"[" * 32 + b"]" * 32)


@given(st.binary(max_size=64))
def test_any_bytes_give_a_value_or_a_400(raw: bytes) -> None:
    try:
        parse_json(raw)
    except ProblemError as error:
        assert error.problem.status == 400
