"""Log set-up: JSON lines, or readable ones on a terminal, on standard error.

A log event is a fixed snake_case name plus fields from the closed list below. Prompts, outputs,
header values and the texts of foreign exceptions appear only in fields under `content.`, which are
left out unless the settings ask for them; a traceback is written as its frames and its exception's
type. Lines of other libraries come the same way, their text as the event.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

import orjson
import structlog

FIELDS: dict[str, str] = {
    "event": "what happened, a fixed name",
    "level": "debug, info, warning or error",
    "timestamp": "UTC, ISO 8601",
    "logger": "the library a foreign line comes from",
    "exception": "frames and type of an exception",
    "request_id": "the caller's id for its request, or one of ours",
    "trace_id": "W3C Trace Context trace id, as the caller sent it",
    "prediction_id": "the prediction",
    "model": "the served model's name",
    "method": "the RPC",
    "code": "the gRPC status code",
    "outcome": "of an RPC: finished, canceled, deadline or error; of a webhook's call: delivered or failed",
    "reason": "the error's reason (ErrorReason)",
    "detail": "what an error's message does not tell its caller",
    "duration_ms": "how long it took",
    "address": "where the service listens",
    "engine": "the engine's kind",
    "attention": "the attention kernels an engine uses",
    "cause": "why an engine went down",
    "final": "whether it is not started again",
    "pid": "a process",
    "status": "the prediction's status",
    "finish_reason": "why generation ended",
    "input_tokens": "tokens fed",
    "output_tokens": "tokens sampled",
    "slots": "predictions an engine runs at the same time",
    "epoch": "which claim of a prediction",
    "seq": "a place in a prediction's log",
    "count": "how many",
    "left": "how many are left",
    "path": "a file of ours",
    "webhook_id": "a webhook's call, over all its attempts",
    "http_status": "what a webhook's receiver answered; 0 for nothing",
    "dropped_fields": "fields that are not on this list and were left out",
}
"""The closed list; `docs/operations.md` prints it."""
CONTENT = "content."
MAX_FRAMES = 50

Event = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How to log."""

    format: str = "auto"
    """`auto`, `console` or `json`."""
    level: str = "info"
    content: bool = False
    """Write `content.…` fields."""


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Set logging up for this process; call once, first."""
    stream = stream or sys.stderr
    console = settings.format == "console" or (settings.format == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _frames,
        _Closed(content=settings.content),
    ]
    render: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
        if console
        else structlog.processors.JSONRenderer(serializer=_json)
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


class _Closed:
    """Let only listed fields through, and content only where it is asked for."""

    def __init__(self, *, content: bool) -> None:
        self._content = content

    def __call__(self, logger: object, method: str, event: Event) -> Event:
        kept: Event = {}
        dropped = []
        for name, value in event.items():
            if name in FIELDS or name.startswith("_"):  # structlog's own marks begin with "_"
                kept[name] = value
            elif name.startswith(CONTENT):
                if self._content:
                    kept[name] = value
            else:
                dropped.append(name)
        if dropped:
            kept["dropped_fields"] = dropped
        return kept


def _frames(logger: object, method: str, event: Event) -> Event:
    """Replace `exc_info` by frames and type; the exception's text is content."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    elif isinstance(info, BaseException):
        info = (type(info), info, info.__traceback__)
    if not info or info[1] is None:
        return event
    error: BaseException = info[1]
    chain: list[str] = []
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None and len(chain) < 8:
        chain.append(_one(current, current.__traceback__))
        texts.append(str(current))
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    event["exception"] = "\ncaused by ".join(chain)
    event[CONTENT + "error"] = "\ncaused by ".join(texts)
    return event


def _one(error: BaseException, trace: TracebackType | None) -> str:
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    frames = traceback.extract_tb(trace, limit=-MAX_FRAMES)
    return "\n".join([kind, *(f"  {f.filename}:{f.lineno} in {f.name}" for f in frames)])


def _json(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()
