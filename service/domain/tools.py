"""A forced tool: the constraint that makes the whole output one call.

Owns the schema that is put around the tools' own: `{"name": …, "arguments": {…}}`, exactly these keys,
in this order. A reference inside a tool's schema is written anew, as the schema stands deeper there:
`#/$defs/X` becomes `#/properties/arguments/$defs/X`.

References through `$id` of the tool's root, or through another document, are left as they are: an
engine that cannot follow them refuses the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from service.domain.json_text import try_object
from service.domain.request import ChatPrompt, Constraint, ForcedTool, GenerationRequest, JsonSchema, Tool

_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_VALUES = frozenset({"const", "enum", "default", "examples", "example"})
"""Keywords whose values are data, not schemas."""
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords that hold schemas by names of the caller's choice."""
_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def effective_constraint(request: GenerationRequest) -> Constraint | None:
    """Return what the output must keep: the request's constraint, or the schema of its forced tool."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt) and prompt.forced_tool is not None:
        return JsonSchema(forced_schema(prompt.tools, prompt.forced_tool))
    return request.constraint


def forced_schema(tools: tuple[Tool, ...], forced: ForcedTool) -> str:
    """Return the JSON Schema of one call, of the named tool or of any; both are known to be sound."""
    allowed = [tool for tool in tools if forced.name in ("", tool.name)]
    assert allowed, "checked before"
    if len(allowed) == 1:
        return json.dumps(_call_schema(allowed[0], "#"))
    choices = [_call_schema(tool, f"#/anyOf/{i}") for i, tool in enumerate(allowed)]
    return json.dumps({"anyOf": choices})


def _call_schema(tool: Tool, at: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "arguments": _arguments(tool.parameters, f"{at}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _arguments(parameters: str, at: str) -> object:
    if not parameters:
        return _NO_ARGUMENTS
    schema = try_object(parameters)
    assert schema is not None, "checked before"
    root = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    moved = _moved(root, at)
    assert isinstance(moved, dict)
    return {"type": "object", **moved}


def _moved(schema: object, at: str) -> object:
    """Return `schema` with the references to its root leading to `at` instead."""
    if isinstance(schema, list):
        return [_moved(item, at) for item in schema]
    if not isinstance(schema, dict) or isinstance(schema.get("$id"), str):
        return schema  # one with an id is a document of its own, and its references are its own too
    return {key: _moved_value(key, value, at) for key, value in schema.items()}


def _moved_value(key: str, value: object, at: str) -> object:
    if key in _VALUES:
        return value
    if key in _REFERENCES and isinstance(value, str):
        return at + value[1:] if value == "#" or value.startswith("#/") else value
    if key in _NAMED and isinstance(value, dict):
        return {name: _moved(part, at) for name, part in value.items()}
    return _moved(value, at)
