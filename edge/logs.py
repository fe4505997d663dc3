"""Owns how the edge's logs are written: one event a line, a fixed name plus fields."""

import logging
import sys

import structlog

from edge.http.middleware import Logger
from edge.settings import Settings


def open_log(settings: Settings) -> Logger:
    """Return the logger of this process, and have the libraries' warnings written beside its lines."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    logging.basicConfig(stream=sys.stderr, level=max(level, logging.WARNING), format="%(name)s: %(message)s")
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    log: Logger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    return log
