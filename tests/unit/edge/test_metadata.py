"""What goes to the service as metadata."""

import pytest

from edge.upstream.metadata import Caller, clean_metadata


@pytest.mark.parametrize(
    ("pair", "kept"),
    [
        (("X-Request-ID", "r1"), ("x-request-id", "r1")),
        (("with_underscore", " v "), ("with_underscore", "v")),
        (("grpc-foo", "v"), None),
        (("GRPC-Foo", "v"), None),
        ((":authority", "v"), None),
        (("blob-bin", "v"), None),
        (("blank", "  "), None),
        (("bad key", "v"), None),
        (("ключ", "v"), None),
        (("latin", "é"), None),
        (("line", "a\nb"), None),
        (("long", "v" * 257), None),
        (("", "v"), None),
    ],
)
def test_keys_are_lowered_and_bad_pairs_left_out(pair: tuple[str, str], kept: tuple[str, str] | None) -> None:
    assert clean_metadata([pair]) == (() if kept is None else (kept,))


def test_the_owner_is_no_metadata_and_everybody_is_asked_for_expressly() -> None:
    caller = Caller("r1", owner="ann")
    assert caller.metadata() == (("x-request-id", "r1"),)
    assert (caller.acts_for, caller.for_everybody().acts_for, caller.for_everybody().owner) == (
        "ann",
        "",
        "ann",
    )


def test_a_caller_without_trace_sends_its_request_id_only() -> None:
    assert Caller("r1").metadata() == (("x-request-id", "r1"),)
    assert Caller("r1", "00-a-b-01").metadata() == (("x-request-id", "r1"), ("traceparent", "00-a-b-01"))
