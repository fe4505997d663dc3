"""Owns what a request says of tools, in no dialect's words, and how the calls of its output are read."""

from dataclasses import dataclass
from typing import Final

import orjson

from edge.protocol.tool_calls import Form, ToolCallReader
from edge.upstream.records import ChatInput, ModelRecord, PredictionRecord, Tool

INVALID: Final = "INVALID_JSON"
"""Key that arguments which are no JSON object stand under where an object is needed."""

ONE_CALL_LABEL: Final = "tools.one_call"
"""Label of a prediction whose answer ends with its first call."""

_FORMS: Final = {form.value: form for form in Form if form is not Form.FORCED}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the model may call in its answer."""

    tools: tuple[Tool, ...]
    """At least one."""

    forced: str | None = None
    """As in `ChatInput.forced_tool`."""

    is_parallel: bool = True
    """Whether it may call several."""

    def reader(self, model: ModelRecord) -> ToolCallReader:
        """Return what reads one output of `model`, which takes tools."""
        form = _FORMS[model.tool_format] if self.forced is None else Form.FORCED
        names = [tool.name for tool in self.tools]
        return ToolCallReader(form, names=names, most=None if self.is_parallel else 1)


def takes_tools(model: ModelRecord) -> bool:
    """Return whether we can read the calls of `model`."""
    return model.tool_format in _FORMS


def one_call_labels(use: ToolUse | None) -> tuple[tuple[str, str], ...]:
    """Return the labels by which `tool_use_of` knows what the request does not say."""
    return () if use is None or use.is_parallel else ((ONE_CALL_LABEL, "1"),)


def tool_use_of(record: PredictionRecord) -> ToolUse | None:
    """Return what a prediction was asked of tools."""
    given = record.generation.input if record.generation is not None else None
    if not isinstance(given, ChatInput) or not given.tools:
        return None
    return ToolUse(given.tools, given.forced_tool, ONE_CALL_LABEL not in dict(record.labels))


def reader_of(record: PredictionRecord, model: ModelRecord) -> ToolCallReader | None:
    """Return what reads the output of a prediction; None where all of it is text."""
    use = tool_use_of(record)
    return use.reader(model) if use is not None and takes_tools(model) else None


def object_of(arguments: str) -> dict[str, object]:
    """Return arguments as an object; what is none stands under `INVALID`."""
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return {INVALID: arguments}
    return value if isinstance(value, dict) else {INVALID: arguments}


def object_text(arguments: str) -> str:
    """Return arguments that come back to us as the text of an object: as they are if they are one."""
    given = object_of(arguments)
    return orjson.dumps(given).decode() if INVALID in given else arguments
