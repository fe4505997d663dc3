"""Owns problem details as HTTP answers (RFC 9457): one exception to raise, one response to send."""

import math
from collections.abc import Mapping
from datetime import timedelta

from starlette.responses import Response

from edge.protocol.problems import CONTENT_TYPE, Problem, encode


class ProblemError(Exception):
    """The request is answered with `problem`. Raised by anything below the error boundary."""

    def __init__(self, problem: Problem, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem.title)
        self.problem = problem
        self.headers = dict(headers or {})


def problem_response(
    problem: Problem, headers: Mapping[str, str] | None = None, **further: object
) -> Response:
    """Return the answer that carries `problem`, and `further` members for other readers; never cached."""
    return Response(
        encode(problem, **further),
        status_code=problem.status,
        media_type=CONTENT_TYPE,
        headers={"cache-control": "no-store", **(headers or {})},
    )


def retry_headers(*, retryable: bool, status: int, retry_after: timedelta | None) -> dict[str, str]:
    """Return what tells clients whether to try again.

    `Retry-After` in whole seconds, at least one (RFC 9110 §10.2.3); `x-should-retry: false` where
    Stainless-made clients would repeat a request that cannot succeed.
    """
    if retryable and retry_after is not None:
        return {"retry-after": str(max(1, math.ceil(retry_after.total_seconds())))}
    if not retryable and (status == 409 or status >= 500):
        return {"x-should-retry": "false"}
    return {}
