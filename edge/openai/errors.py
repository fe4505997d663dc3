"""Owns errors in OpenAI's shape: `{"error": {message, type, param, code}}`, as answers and in streams."""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from edge.http.problem_responses import retry_headers
from edge.http.wire_json import encode_json
from edge.protocol.problems import Problem
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.field_names import renamed

INVALID: Final = "invalid_request_error"
RATE_LIMIT: Final = "rate_limit_error"
SERVER: Final = "server_error"

KINDS: Final = {
    Reason.INVALID_REQUEST: (INVALID, "invalid_value"),
    Reason.CONTEXT_EXCEEDED: (INVALID, "context_length_exceeded"),
    Reason.UNSUPPORTED_BY_ENGINE: (INVALID, "unsupported_parameter"),
    Reason.PREDICTION_NOT_FOUND: (INVALID, "not_found"),
    Reason.MODEL_NOT_FOUND: (INVALID, "model_not_found"),
    Reason.ID_CONFLICT: (INVALID, "conflict"),
    Reason.CURSOR_EXPIRED: (INVALID, "expired"),
    Reason.QUEUE_FULL: (RATE_LIMIT, "queue_full"),
    Reason.TOO_MANY_READERS: (RATE_LIMIT, "too_many_readers"),
    Reason.READER_TOO_SLOW: (SERVER, "slow_consumer"),
    Reason.ENGINE_NOT_READY: (SERVER, "unavailable"),
    Reason.DRAINING: (SERVER, "unavailable"),
    Reason.STORE_UNAVAILABLE: (SERVER, "unavailable"),
    Reason.INTERNAL: (SERVER, "internal_error"),
    Reason.UNREACHABLE: (SERVER, "unavailable"),
    Reason.DEADLINE_EXCEEDED: (SERVER, "deadline_exceeded"),
    Reason.GENERATION_FAILED: (SERVER, "engine_error"),
    Reason.GENERATION_CANCELED: (SERVER, "canceled"),
    Reason.GENERATION_DEADLINE: (SERVER, "deadline_exceeded"),
}
"""Type and code of each reason. Total; tested."""

_BY_STATUS: Final = {
    404: (INVALID, "not_found"),
    405: (INVALID, "method_not_allowed"),
    408: (INVALID, "request_timeout"),
    413: (INVALID, "request_too_large"),
    415: (INVALID, "unsupported_media_type"),
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    429: (RATE_LIMIT, "rate_limit_exceeded"),
}


class RequestRefused(Exception):
    """The request cannot be taken as it is: answered 400."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def error_body(message: str, kind: str, code: str | None, param: str | None = None) -> dict[str, object]:
    """Return the body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def upstream_body(error: UpstreamError, names: Mapping[str, str] | None = None) -> dict[str, object]:
    """Return the body for an upstream error; `names` gives fields of the service the name they have here."""
    param: str | None
    kind, code = KINDS[error.reason]
    if error.violations:
        first = error.violations[0]
        param = renamed(first.field, names or {}, index=".[{}]")
        return error_body(f"Invalid '{param}': {first.description}.", kind, code, param)
    param = "model" if error.reason is Reason.MODEL_NOT_FOUND else None
    return error_body(error.message, kind, code, param)


def refusal(error: RequestRefused) -> Response:
    """Return the answer to a request that cannot be taken."""
    return _response(error_body(error.message, INVALID, error.code, error.param), 400, {})


def upstream_response(error: UpstreamError, names: Mapping[str, str] | None = None) -> Response:
    """Return the whole answer to an upstream error."""
    outcome = error.outcome
    headers = retry_headers(
        retryable=outcome.retryable, status=outcome.http_status, retry_after=error.retry_after
    )
    if error.prediction_id:
        headers["x-request-id"] = error.prediction_id
    return _response(upstream_body(error, names), outcome.http_status, headers)


def problem_shape(problem: Problem, headers: Mapping[str, str]) -> Response:
    """Return the answer to a problem that was found before the request reached this API."""
    return _response(problem_body(problem), problem.status, headers)


def problem_body(problem: Problem) -> dict[str, object]:
    """Return the body for a problem."""
    default = (SERVER, "internal_error") if problem.status >= 500 else (INVALID, "invalid_request")
    kind, code = _BY_STATUS.get(problem.status, default)
    param = problem.invalid_fields[0].field if problem.invalid_fields else None
    return error_body(problem.detail, kind, code, param)


def _response(body: object, status: int, headers: Mapping[str, str]) -> Response:
    return Response(
        encode_json(body), status, {"cache-control": "no-store", **headers}, media_type="application/json"
    )
