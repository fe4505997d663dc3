"""Owns errors in Replicate's shape: upstream errors and faulty input → problem details, and headers."""

import re
from collections.abc import Iterable
from typing import Final

from starlette.responses import Response

from edge.http.problem_responses import problem_response, retry_headers
from edge.protocol.problems import InvalidField, Problem
from edge.upstream.errors import Reason, UpstreamError, Violation

_GROUP: Final = re.compile(r"^(?:generation\.|sampling\.|stopping\.|chat\.)+")
_INDEX: Final = re.compile(r"\[(\d+)\]")


def invalid_input(faults: Iterable[InvalidField]) -> Problem:
    """Return Replicate's 422 for faulty input: every fault in `invalid_fields` and as a line."""
    faults = tuple(faults)
    detail = "".join(f"- {fault.field}: {fault.description}\n" for fault in faults)
    return Problem("Input validation failed", 422, detail, invalid_fields=faults)


def invalid_version() -> Problem:
    """Return Replicate's 422 for a version that is not served."""
    detail = "The specified version does not exist (or perhaps you don't have permission to use it?)"
    return Problem("Invalid version or not permitted", 422, detail)


def upstream_problem(error: UpstreamError) -> Problem:
    """Return what an upstream error is to a caller of this API."""
    if error.violations:
        return invalid_input(_field(violation, error.reason) for violation in error.violations)
    outcome = error.outcome
    extras: tuple[tuple[str, str | int | bool], ...] = ()
    if outcome.http_status == 429 and error.retry_after is not None:
        extras = (("retry_after", max(1, round(error.retry_after.total_seconds()))),)
    return Problem(outcome.title, outcome.http_status, error.message, extras=extras)


def upstream_response(error: UpstreamError, /, **further: object) -> Response:
    """Return the whole answer to an upstream error, with `further` members for other readers."""
    problem = upstream_problem(error)
    headers = retry_headers(
        retryable=error.outcome.retryable, status=problem.status, retry_after=error.retry_after
    )
    return problem_response(problem, headers, **further)


def _field(violation: Violation, reason: Reason) -> InvalidField:
    """Return a violation under the name that this API has for the field."""
    if violation.field.startswith("webhook"):
        name = "webhook_events_filter" if violation.field == "webhook.events" else "webhook"
        return InvalidField(reason.value.lower(), name, violation.description)
    path = _INDEX.sub(r".\1", _GROUP.sub("", violation.field))
    return InvalidField(reason.value.lower(), f"input.{path}" if path else "input", violation.description)
