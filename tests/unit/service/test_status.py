"""Each error has one status, with details that any client can read and no header limit can hide."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from protos.tailrace.v1.errors_pb2 import ErrorReason
from service.domain import errors
from service.domain.errors import ContextExceeded, InvalidRequest, QueueFull, TailraceError
from service.domain.request import FieldViolation
from service.rpc.status import CODES, DETAILS_KEY, INTERNAL, public_text, status_of

PREFIX = "ERROR_REASON_"
REASONS = {name.removeprefix(PREFIX) for name in ErrorReason.keys()} - {"UNSPECIFIED"}


def subclasses(kind: type[TailraceError]) -> list[type[TailraceError]]:
    return [kind, *(c for child in kind.__subclasses__() for c in subclasses(child))]


def make(kind: type[TailraceError]) -> TailraceError:
    if issubclass(kind, InvalidRequest):
        return kind((FieldViolation("prompt", "must not be empty"),))
    return kind("text")


def details(error: TailraceError) -> dict[str, list]:
    status = status_of(error)
    ((key, value),) = status.trailer
    assert key == DETAILS_KEY
    rich = status_pb2.Status.FromString(value)
    assert (rich.code, rich.message) == (status.code.value[0], status.message)
    found: dict[str, list] = {"ErrorInfo": [], "BadRequest": [], "RetryInfo": []}
    for packed in rich.details:
        name = packed.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, name)()
        assert packed.Unpack(message)
        found[name].append(message)
    return found


def test_every_reason_of_the_contract_has_a_code_and_every_code_a_reason():
    assert set(CODES) == REASONS
    assert grpc.StatusCode.OK not in CODES.values()


def test_every_error_of_the_domain_has_a_reason_of_the_contract_of_its_own():
    kinds = [kind for kind in subclasses(TailraceError) if kind.__module__ == errors.__name__]
    assert {kind.reason for kind in kinds} == REASONS
    assert len({kind.reason for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("kind", subclasses(TailraceError), ids=lambda kind: kind.__name__)
def test_every_error_carries_exactly_one_reason_and_says_whether_to_retry(kind: type[TailraceError]):
    found = details(make(kind))
    (info,) = found["ErrorInfo"]
    assert (info.reason, info.domain) == (kind.reason, "tailrace")
    assert len(found["RetryInfo"]) == kind.retryable
    assert len(found["BadRequest"]) == issubclass(kind, InvalidRequest)


def test_retry_after_is_passed_on_and_never_negative():
    for after, seconds in ((timedelta(seconds=7), 7), (timedelta(seconds=-7), 0)):
        (retry,) = details(QueueFull("full", retry_after=after))["RetryInfo"]
        assert retry.retry_delay.ToTimedelta() == timedelta(seconds=seconds)


def test_every_bad_field_is_named():
    violations = (FieldViolation("prompt", "must not be empty"), FieldViolation("priority", "must be small"))
    (bad,) = details(ContextExceeded(violations))["BadRequest"]
    assert [(v.field, v.description) for v in bad.field_violations] == [
        ("prompt", "must not be empty"),
        ("priority", "must be small"),
    ]


def test_the_detail_for_the_log_and_foreign_texts_stay_here():
    wire = status_of(TailraceError("text", detail="secret")).trailer[0][1]
    assert b"secret" not in wire
    assert INTERNAL.reason == "INTERNAL"


hard = st.text() | st.sampled_from(["\0", "😀", "\n", "\ud800", "e\u0301", "€"]).map(lambda c: c * 100_000)


@given(hard, st.lists(st.builds(FieldViolation, hard, hard), min_size=1, max_size=5))
def test_whatever_the_text_the_headers_stay_below_8_kib(text: str, violations: list[FieldViolation]):
    for error in (QueueFull(text), InvalidRequest(tuple(violations))):
        status = status_of(error)
        assert len(status.message.encode()) <= 1024
        ((key, value),) = status.trailer
        size = len(quote(status.message, safe="")) + len(key) + len(value) * 4 // 3 + 4
        assert size < 8 * 1024
        assert details(error)["ErrorInfo"]


@given(hard, st.integers(3, 2000))
def test_public_text_is_clean_and_a_prefix_within_its_limit(text: str, limit: int):
    shown = public_text(text, limit)
    assert len(shown.encode()) <= limit and "\0" not in shown
    clean = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    assert shown == clean or (shown.endswith("…") and clean.startswith(shown[:-1]))
