"""Owns request bodies: reading one within bounds, and turning it into JSON values.

Choices for what RFC 8259 leaves open: UTF-8 only; a byte order mark at the start is accepted (§8.1);
NaN and Infinity are refused; of duplicate keys the last one wins, and only the parsed value is used
afterwards. The Content-Type is not asked: clients without one mean JSON too. Compressed bodies are
refused (415). Errors name a position, never the text found there.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio
import orjson
from starlette.requests import Request

from edge.http.problem_responses import ProblemError
from edge.protocol.json_depth import is_within_depth
from edge.protocol.problems import Problem

MAX_DEPTH: Final = 32
"""Deepest nesting of arrays and objects."""

DISCARDED_BYTES: Final = 16 * 1024 * 1024
"""Read and thrown away of a body that is too large. A connection that is closed with unread bytes is
reset, and most clients then never see the answer."""

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None

_BOM: Final = b"\xef\xbb\xbf"
_CLOSE: Final = {"connection": "close"}
"""With an answer given before the body was read: what follows on the connection is that body."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds of one body."""

    max_bytes: int
    """Larger ones are answered 413."""

    deadline: timedelta
    """For the whole of it; slower ones are answered 408."""


async def read_json(request: Request, limits: BodyLimits) -> JsonValue:
    """Return the body's value. Raises ProblemError: 400, 408, 413 or 415."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise _refusal(415, "Unsupported media type", "Send the body without Content-Encoding.", close=True)
    return parse_json(await read_body(request, limits))


async def read_body(request: Request, limits: BodyLimits) -> bytes:
    """Return the whole body. Raises ProblemError 408 or 413, or ClientDisconnect."""
    chunks: list[bytes] = []
    size = 0
    with anyio.move_on_after(limits.deadline.total_seconds()):
        async for chunk in request.stream():
            size += len(chunk)
            if size <= limits.max_bytes:
                chunks.append(chunk)
            elif size > limits.max_bytes + DISCARDED_BYTES:
                break
            else:
                chunks.clear()
        if size > limits.max_bytes:
            raise _too_large(limits)
        return b"".join(chunks)
    seconds = f"{limits.deadline.total_seconds():g}"
    raise _refusal(408, "Request timeout", f"The body did not arrive within {seconds} s.", close=True)


async def discard_body(request: Request, limits: BodyLimits) -> bool:
    """Read the body for nothing, so that its sender sees the answer; return whether all of it came."""
    size = 0
    with anyio.move_on_after(limits.deadline.total_seconds()):
        async for chunk in request.stream():
            size += len(chunk)
            if size > DISCARDED_BYTES:
                return False
        return True
    return False


def parse_json(raw: bytes) -> JsonValue:
    """Return the value that `raw` is the text of. Raises ProblemError 400."""
    raw = raw.removeprefix(_BOM)
    if not raw.strip(b" \t\r\n"):
        raise _malformed("The body is empty; a JSON object is needed.")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"The body is not UTF-8 at byte {error.start}.") from None
    if not is_within_depth(raw, MAX_DEPTH):
        raise _malformed(f"The body nests arrays and objects more than {MAX_DEPTH} levels deep.")
    try:
        value: JsonValue = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _malformed(f"The body is not valid JSON at {where}.") from None
    return value


def _malformed(detail: str) -> ProblemError:
    return _refusal(400, "Malformed JSON", detail)


def _too_large(limits: BodyLimits) -> ProblemError:
    return _refusal(413, "Body too large", f"The body may have {limits.max_bytes} bytes at most.", close=True)


def _refusal(status: int, title: str, detail: str, *, close: bool = False) -> ProblemError:
    return ProblemError(Problem(title, status, detail), _CLOSE if close else None)
