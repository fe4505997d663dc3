"""Owns errors in Anthropic's shape: `{"type": "error", "error": {type, message}, "request_id"}`.

A passing condition of ours is `overloaded_error` with status 529, which their SDKs repeat by
`Retry-After`; a full queue is `rate_limit_error` with 429.
"""

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from edge.http.problem_responses import retry_headers
from edge.http.wire_json import encode_json
from edge.protocol.problems import Problem
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.field_names import renamed

INVALID: Final = "invalid_request_error"
OVERLOADED: Final = (529, "overloaded_error")

KINDS: Final = {
    Reason.INVALID_REQUEST: (400, INVALID),
    Reason.CONTEXT_EXCEEDED: (400, INVALID),
    Reason.UNSUPPORTED_BY_ENGINE: (400, INVALID),
    Reason.PREDICTION_NOT_FOUND: (404, "not_found_error"),
    Reason.MODEL_NOT_FOUND: (404, "not_found_error"),
    Reason.ID_CONFLICT: (409, INVALID),
    Reason.CURSOR_EXPIRED: (410, INVALID),
    Reason.QUEUE_FULL: (429, "rate_limit_error"),
    Reason.TOO_MANY_READERS: (429, "rate_limit_error"),
    Reason.READER_TOO_SLOW: OVERLOADED,
    Reason.ENGINE_NOT_READY: OVERLOADED,
    Reason.DRAINING: OVERLOADED,
    Reason.STORE_UNAVAILABLE: OVERLOADED,
    Reason.INTERNAL: (500, "api_error"),
    Reason.UNREACHABLE: OVERLOADED,
    Reason.DEADLINE_EXCEEDED: (504, "timeout_error"),
    Reason.GENERATION_FAILED: (500, "api_error"),
    Reason.GENERATION_CANCELED: (409, INVALID),
    Reason.GENERATION_DEADLINE: (504, "timeout_error"),
}
"""Status and type of each reason. Total; tested."""

_BY_STATUS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_NAMES: Final = {
    "json_schema": "output_config.format",
    "stop": "stop_sequences",
    "prompt": "messages",
    "chat": "messages",
    "token_ids": "messages",
    "forced_tool": "tool_choice",
    "continue_final_message": "messages",
    "tools[].parameters": "tools[].input_schema",
}
"""Fields of the service by their names here, where they differ."""


class RequestRefused(Exception):
    """The request cannot be taken as it is: answered 400."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")


def error_body(kind: str, message: str) -> dict[str, object]:
    """Return the body."""
    return {"type": "error", "error": {"type": kind, "message": message}}


def upstream_body(error: UpstreamError) -> dict[str, object]:
    """Return the body for an upstream error."""
    message = error.message
    if error.violations:
        first = error.violations[0]
        message = f"{renamed(first.field, _NAMES, index='.{}')}: {first.description}"
    return error_body(KINDS[error.reason][1], message)


def upstream_response(error: UpstreamError, request_id: str = "") -> Response:
    """Return the whole answer to an upstream error; a prediction's own id goes before the request's."""
    status = KINDS[error.reason][0]
    headers = retry_headers(retryable=error.outcome.retryable, status=status, retry_after=error.retry_after)
    if error.prediction_id:
        request_id = headers["x-request-id"] = error.prediction_id
    return _response(upstream_body(error), status, headers, request_id)


def refusal(error: RequestRefused, request_id: str = "") -> Response:
    """Return the answer to a request that cannot be taken."""
    return _response(error_body(INVALID, str(error)), 400, {}, request_id)


def problem_shape(problem: Problem, headers: Mapping[str, str], request_id: str = "") -> Response:
    """Return the answer to a problem that was found before the request reached this API."""
    kind = _BY_STATUS.get(problem.status, "api_error" if problem.status >= 500 else INVALID)
    return _response(error_body(kind, problem.detail), problem.status, headers, request_id)


def _response(body: dict[str, object], status: int, headers: Mapping[str, str], request_id: str) -> Response:
    told = {"cache-control": "no-store", **headers}
    if request_id:
        told["request-id"] = request_id
        body["request_id"] = request_id
    return Response(encode_json(body), status, told, media_type="application/json")
