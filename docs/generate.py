"""Writes the pages and tables that come from the code; `--check` compares and exits 1 on a difference.

`docs/configuration.md` from both settings classes, `docs/errors.md` from the proto enum and the two
mapping tables, and between their marks the list of log fields inside `docs/operations.md` and the
schedule of retries inside `docs/api/webhooks.md`.
"""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from pathlib import Path

import edge.settings
import service.settings
from edge.replicate.errors import upstream_problem
from edge.upstream.errors import Reason, UpstreamError, Violation
from service.domain.webhook_delivery import RETRY_DELAYS, retry_window
from service.logs import FIELDS
from service.rpc.status import CODES
from service.settings import duration_text

DOCS = Path(__file__).resolve().parent
PROTO = DOCS.parent / "protos" / "tailrace" / "v1" / "errors.proto"
NOTE = "<!-- Written by `make docs`; edit the code or docs/generate.py instead. -->\n"
MARKED = re.compile(r"(<!-- log fields: begin -->\n).*(<!-- log fields: end -->)", re.DOTALL)
RETRIES = re.compile(r"(<!-- retries: begin -->\n).*(<!-- retries: end -->)", re.DOTALL)
ENUM_VALUE = re.compile(r"((?:  // .+\n)+)  ERROR_REASON_([A-Z_]+) = \d+;")

CONFIGURATION = """{note}
# Configuration

Both processes read environment variables once, at their start, and stop with a readable reason when one
is unknown, misspelt or out of bounds: a limit is never silently without effect.
`python -m service --print-config` and `python -m edge --print-config` print what is in force.

Durations are written as seconds (`20`, `0.5`) or with a unit (`250ms`, `20s`, `30m`, `24h`).

## Service

{service}
## Edge

{edge}
## The first run

`make run` sets what the two need to find each other, shortens `SERVICE_DRAIN` to 3 s, and takes `PROMPT`,
`MODEL` (a file), `ONCE` and `LOG_DIR`.
"""

ERRORS = """{note}
# Errors

Every error has a reason to branch on; messages are for people and may change. A *generation* that fails is
no error: the call succeeds and the prediction's `status` is `failed`.

- **gRPC**: the status carries one `google.rpc.ErrorInfo` whose `reason` is below and whose `domain` is
  `tailrace`; bad input also a `BadRequest` with a violation a field, and a passing condition a `RetryInfo`.
- **HTTP**: problem details (RFC 9457), `application/problem+json`, with `title`, `status` and `detail`;
  faulty fields in `invalid_fields`; `Retry-After` where a retry helps.

| reason | meaning | gRPC | HTTP | a retry helps |
|---|---|---|---|---|
{rows}
The last five are the edge's own. `UNREACHABLE` and `DEADLINE_EXCEEDED`: the service did not answer it; over
gRPC the same conditions are `UNAVAILABLE` and `DEADLINE_EXCEEDED` without an `ErrorInfo`. The others stand
where the answer is a prediction's output: in OpenAI's and Anthropic's APIs, which write errors in their own
shapes. Input that the edge refuses before it asks the service is answered with 422 like `INVALID_REQUEST`
(with 400 in those two APIs), a body that is not JSON with 400.
"""

EDGE_ONLY = {
    Reason.UNREACHABLE: "The service cannot be reached.",
    Reason.DEADLINE_EXCEEDED: "The service did not answer in time.",
    Reason.GENERATION_FAILED: "The prediction failed.",
    Reason.GENERATION_CANCELED: "The prediction was canceled through the API.",
    Reason.GENERATION_DEADLINE: "The prediction's own deadline passed.",
}
WITH_FIELDS = frozenset({Reason.INVALID_REQUEST, Reason.CONTEXT_EXCEEDED, Reason.UNSUPPORTED_BY_ENGINE})
"""Reasons that come with field violations."""


def meanings() -> dict[str, str]:
    """Return each reason's comment in the proto, without its gRPC half."""
    found = {}
    for comment, reason in ENUM_VALUE.findall(PROTO.read_text()):
        text = " ".join(line.strip().removeprefix("// ") for line in comment.strip().splitlines())
        found[reason] = re.sub(r": [A-Z_]{5,}(, with \w+)?\.", ".", text)
    return found


def errors() -> str:
    """Return docs/errors.md."""
    said = meanings() | {reason.value: text for reason, text in EDGE_ONLY.items()}
    rows = []
    for reason in Reason:
        violations = (Violation("prompt", "…"),) if reason in WITH_FIELDS else ()
        error = UpstreamError(reason, violations=violations)
        code = f"`{CODES[reason.value].name}`" if reason.value in CODES else "–"
        retry = "yes" if error.outcome.retryable else "no"
        status = upstream_problem(error).status
        rows.append(f"| `{reason.value}` | {said[reason.value]} | {code} | {status} | {retry} |\n")
    return ERRORS.format(note=NOTE, rows="".join(rows))


def configuration() -> str:
    """Return docs/configuration.md."""
    tables = {"service": service.settings.markdown(), "edge": edge.settings.markdown()}
    return CONFIGURATION.format(note=NOTE, **tables)


def operations(page: str) -> str:
    """Return docs/operations.md with its list of log fields filled in."""
    rows = "".join(f"| `{field}` | {meaning} |\n" for field, meaning in FIELDS.items())
    return MARKED.sub(rf"\g<1>\n| field | meaning |\n|---|---|\n{rows}\n\g<2>", page)


def webhooks(page: str) -> str:
    """Return docs/api/webhooks.md with its schedule filled in."""
    passed = timedelta(0)
    rows = ""
    for attempt, delay in enumerate(RETRY_DELAYS, 1):
        passed += delay
        pause = duration_text(delay) if delay else "at once"
        rows += f"| {attempt} | {pause} | {passed} |\n"
    last = f"The last attempt is made about {retry_window() // timedelta(minutes=1)} minutes after the end.\n"
    head = "| attempt | pause before it | after the end (h:mm:ss) |\n|---|---|---|\n"
    return RETRIES.sub(rf"\g<1>\n{head}{rows}\n{last}\n\g<2>", page)


def main() -> None:
    """Write, or compare with `--check`."""
    made = {
        DOCS / "configuration.md": configuration(),
        DOCS / "errors.md": errors(),
        DOCS / "api" / "webhooks.md": webhooks((DOCS / "api" / "webhooks.md").read_text()),
        DOCS / "operations.md": operations((DOCS / "operations.md").read_text()),
    }
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.write_text(made[path])
        print("written:", ", ".join(path.name for path in stale) or "nothing, all was fresh")
    elif stale:
        raise SystemExit("stale, run `make docs`: " + ", ".join(path.name for path in stale))


if __name__ == "__main__":
    main()
