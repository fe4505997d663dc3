"""gRPC statuses → errors: total over the contract's enum, and safe against anything else."""

from datetime import timedelta

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from edge.replicate.errors import upstream_problem, upstream_response
from edge.upstream.errors import OUTCOMES, Reason, UpstreamError, Violation, from_rpc_error
from protos.tailrace.v1 import errors_pb2

PREFIX = "ERROR_REASON_"
PROTO_REASONS = [
    name.removeprefix(PREFIX) for name in errors_pb2.ErrorReason.keys() if name != f"{PREFIX}UNSPECIFIED"
]


def rpc_error(
    code: grpc.StatusCode, *details: object, message: str = "text", raw: bytes | None = None
) -> grpc.aio.AioRpcError:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)  # type: ignore[arg-type]  # google.rpc comes without types
        status.details.append(packed)
    trailer = raw if raw is not None else status.SerializeToString()
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", trailer))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details=message)


def info(reason: str, domain: str = "tailrace") -> error_details_pb2.ErrorInfo:
    return error_details_pb2.ErrorInfo(reason=reason, domain=domain)


def test_the_tables_are_total() -> None:
    own = {"UNREACHABLE", "DEADLINE_EXCEEDED"}
    own |= {"GENERATION_FAILED", "GENERATION_CANCELED", "GENERATION_DEADLINE"}
    assert {reason.value for reason in Reason} == set(PROTO_REASONS) | own
    assert set(OUTCOMES) == set(Reason)


@pytest.mark.parametrize("reason", PROTO_REASONS)
def test_every_reason_comes_back_with_an_answer(reason: str) -> None:
    error = from_rpc_error(rpc_error(grpc.StatusCode.INTERNAL, info(reason)))
    assert error.reason is Reason[reason]
    problem = upstream_problem(error)
    assert problem.status == error.outcome.http_status >= 400 and problem.title and problem.detail
    retries = upstream_response(error).headers.get("retry-after")
    assert (retries is not None) == error.outcome.retryable


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_without_our_info_shows_none_of_its_text(code: grpc.StatusCode) -> None:
    for error in (rpc_error(code, message="SECRET"), rpc_error(code, info("X", "other"), message="SECRET")):
        mapped = from_rpc_error(error)
        assert "SECRET" not in mapped.message and mapped.outcome.http_status >= 400


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.UNREACHABLE),
        (grpc.StatusCode.CANCELLED, Reason.UNREACHABLE),
        (grpc.StatusCode.ABORTED, Reason.READER_TOO_SLOW),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED),
        (grpc.StatusCode.UNKNOWN, Reason.INTERNAL),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.INTERNAL),
    ],
)
def test_grpc_s_own_statuses(code: grpc.StatusCode, reason: Reason) -> None:
    assert from_rpc_error(rpc_error(code, raw=b"")).reason is reason


@pytest.mark.parametrize("raw", [b"", b"\xff\xff\xff", b"\x0a"])
def test_a_spoiled_trailer_is_no_error_of_its_own(raw: bytes) -> None:
    assert from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, raw=raw)).reason is Reason.UNREACHABLE


def test_an_unknown_reason_of_ours_is_judged_by_its_code() -> None:
    error = from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE, info("NEWER_THAN_THIS_EDGE")))
    assert error.reason is Reason.UNREACHABLE


def test_violations_become_fields_of_the_input() -> None:
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="generation.sampling.temperature", description="too hot")
    bad.field_violations.add(field="stopping.stop[3]", description="too long")
    bad.field_violations.add(field="prompt", description="too much")
    error = from_rpc_error(rpc_error(grpc.StatusCode.INVALID_ARGUMENT, info("INVALID_REQUEST"), bad))
    assert error.violations[0] == Violation("generation.sampling.temperature", "too hot")
    problem = upstream_problem(error)
    assert problem.status == 422
    assert [field.field for field in problem.invalid_fields] == [
        "input.temperature",
        "input.stop.3",
        "input.prompt",
    ]


def test_retry_after_is_the_service_s_word_in_whole_seconds() -> None:
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromTimedelta(timedelta(seconds=2.2))
    error = from_rpc_error(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, info("QUEUE_FULL"), retry))
    assert error.retry_after == timedelta(seconds=2.2)
    response = upstream_response(error)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


def test_a_long_message_is_cut() -> None:
    error = from_rpc_error(rpc_error(grpc.StatusCode.NOT_FOUND, info("MODEL_NOT_FOUND"), message="é" * 5000))
    assert len(error.message.encode()) <= 1024


def test_clients_are_told_not_to_repeat_what_cannot_succeed() -> None:
    assert upstream_response(UpstreamError(Reason.INTERNAL)).headers["x-should-retry"] == "false"
    assert upstream_response(UpstreamError(Reason.ID_CONFLICT)).headers["x-should-retry"] == "false"
    assert "x-should-retry" not in upstream_response(UpstreamError(Reason.DRAINING)).headers
