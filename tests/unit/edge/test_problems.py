"""Problem details: their JSON, for any text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.problems import CONTENT_TYPE, InvalidField, Problem, encode

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))


def decoded(problem: Problem) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(encode(problem))
    return members


def test_smallest_problem_has_the_three_members_clients_read() -> None:
    problem = Problem("Not found", 404, "There is no such prediction.")
    assert decoded(problem) == {
        "title": "Not found",
        "detail": "There is no such prediction.",
        "status": 404,
    }


def test_every_member_is_written() -> None:
    problem = Problem(
        title="Input validation failed",
        status=422,
        detail="- input: prompt is required\n",
        type="https://tailrace.example/problems/invalid-request",
        instance="/v1/predictions",
        invalid_fields=(InvalidField("required", "input", "prompt is required"),),
        extras=(("retry_after", 3), ("reason", "INVALID_REQUEST"), ("retryable", False)),
    )
    assert decoded(problem) == {
        "type": "https://tailrace.example/problems/invalid-request",
        "title": "Input validation failed",
        "status": 422,
        "detail": "- input: prompt is required\n",
        "instance": "/v1/predictions",
        "invalid_fields": [{"type": "required", "field": "input", "description": "prompt is required"}],
        "retry_after": 3,
        "reason": "INVALID_REQUEST",
        "retryable": False,
    }


def test_content_type_is_that_of_the_rfc() -> None:
    assert CONTENT_TYPE == "application/problem+json"


def test_long_detail_is_cut_at_a_character_and_marked() -> None:
    for character in ("a", "é", "한", "🙂"):
        detail = decoded(Problem("t", 400, character * 2000))["detail"]
        assert 1020 <= len(detail.encode()) <= 1024
        assert detail == character * (len(detail) - 1) + "…"


def test_detail_that_just_fits_is_not_cut() -> None:
    assert decoded(Problem("t", 400, "한" * 341 + "a"))["detail"] == "한" * 341 + "a"


def test_labels_and_number_of_fields_are_bounded() -> None:
    fault = InvalidField("t" * 999, "f" * 999, "d" * 9999)
    problem = Problem("x" * 999, 400, "", "u" * 999, "i" * 999, (fault,) * 99, (("extra", "e" * 999),))
    members = decoded(problem)
    assert len(members["invalid_fields"]) == 32
    labels = [members[name] for name in ("title", "type", "instance", "extra")]
    labels += [members["invalid_fields"][0][name] for name in ("type", "field")]
    assert all(len(label.encode()) == 256 for label in labels)
    assert len(members["invalid_fields"][0]["description"].encode()) == 1024


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_gives_ascii_json_that_strict_parsers_take(title: str, detail: str) -> None:
    fields = (InvalidField("enum", title, detail),)
    body = encode(Problem(title, 400, detail, invalid_fields=fields, extras=(("more", title),)))
    assert body.isascii()
    members = json.loads(body)
    json.dumps(members, ensure_ascii=False).encode()  # fails on a surrogate that is left


@pytest.mark.parametrize("status", [0, 200, 399, 600])
def test_status_that_is_no_error_is_refused(status: int) -> None:
    with pytest.raises(ValueError, match="status"):
        Problem("t", status, "d")


@pytest.mark.parametrize("name", ["type", "status", "invalid_fields", "", "ab", "1abc", "a-bc"])
def test_extra_that_is_no_free_member_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="extra member"):
        Problem("t", 400, "d", extras=((name, 1),))
