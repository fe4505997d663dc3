"""Logs: one JSON object a line, a closed list of fields, no content unless asked for."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from service.logs import FIELDS, LogSettings, configure


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_its_fields_and_those_bound_for_the_request():
    stream = io.StringIO()
    configure(LogSettings("json"), stream)
    structlog.contextvars.bind_contextvars(request_id="r1")
    structlog.get_logger().info("rpc_done", method="/a/b", duration_ms=1.5)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["request_id"]) == ("rpc_done", "info", "r1")
    assert line["timestamp"].endswith("Z") and line["duration_ms"] == 1.5


def test_a_field_that_is_not_on_the_list_is_left_out_and_named():
    stream = io.StringIO()
    configure(LogSettings("json"), stream)
    structlog.get_logger().info("x", prompt="secret", model="a/b")
    (line,) = lines(stream)
    assert line["dropped_fields"] == ["prompt"] and line["model"] == "a/b"
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize("content", [False, True])
def test_content_and_exception_texts_are_written_only_on_request(content: bool):
    stream = io.StringIO()
    configure(LogSettings("json", content=content), stream)
    try:
        try:
            raise KeyError("inner secret")
        except KeyError as error:
            raise RuntimeError("outer secret") from error
    except RuntimeError:
        structlog.get_logger().exception("rpc_failed", **{"content.prompt": "my secret"})
    (line,) = lines(stream)
    assert "builtins.RuntimeError" in line["exception"] and "caused by builtins.KeyError" in line["exception"]
    assert f"in {test_content_and_exception_texts_are_written_only_on_request.__name__}" in line["exception"]
    assert ("secret" in stream.getvalue()) is content
    if content:
        assert line["content.error"] == "outer secret\ncaused by 'inner secret'"


def test_other_libraries_lines_come_the_same_way():
    stream = io.StringIO()
    configure(LogSettings("json", level="warning"), stream)
    logging.getLogger("grpc").warning("lost %s", "peer")
    logging.getLogger("grpc").info("not shown")
    structlog.get_logger().info("not_shown")
    (line,) = lines(stream)
    assert (line["event"], line["logger"], line["level"]) == ("lost peer", "grpc", "warning")


def test_a_terminal_gets_readable_lines():
    stream = io.StringIO()
    configure(LogSettings("console"), stream)
    structlog.get_logger().info("drained", left=2)
    assert re.search(r"drained +left=2", stream.getvalue())


def test_every_field_that_the_service_logs_is_on_the_list():
    call = re.compile(r"\blog\.(?:debug|info|warning|error|exception)\(((?:[^()]|\([^()]*\))*)\)")
    name = re.compile(r"(?:^|[,(]\s*)([a-z_]+)=")
    for path in Path("service").rglob("*.py"):
        for found in call.finditer(path.read_text()):
            assert set(name.findall(found[1])) - {"exc_info"} <= set(FIELDS), f"{path}: {found[0]}"
