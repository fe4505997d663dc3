"""The schema of a forced call takes exactly the calls that the tools' own schemas take."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.chat import ChatMessage, ChatPrompt, ForcedTool, Tool
from service.domain.json_text import MAX_NESTING, nesting
from service.domain.request import GenerationRequest, JsonSchema, Regex, TextPrompt
from service.domain.tools import effective_constraint, forced_schema

Draft = jsonschema.Draft202012Validator
TREE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.org/tree",
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}, "again": {"$ref": "#"}, "$ref": {"type": "string"}},
    "required": ["root"],
    "additionalProperties": False,
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"value": {"const": {"$ref": "#/$defs/X"}}, "next": {"$ref": "#/$defs/Node"}},
            "additionalProperties": False,
        }
    },
}
"""References to a definition, to the root, inside a definition; and what only looks like one."""
TREES = [
    ({"root": {"value": {"$ref": "#/$defs/X"}, "next": {"next": {}}}, "$ref": "s"}, True),
    ({"root": {}, "again": {"root": {}}}, True),
    ({"root": {"value": {"$ref": "#/properties/arguments/$defs/X"}}}, False),
    ({"root": {}, "again": {"root": 5}}, False),
    ({"root": {"next": {"next": {"other": 1}}}}, False),
    ({"root": {}, "$ref": 5}, False),
    ({}, False),
]


def takes(schema: str, value: object) -> bool:
    """Whether a schema takes a value."""
    return bool(Draft(json.loads(schema)).is_valid(value))


@pytest.mark.parametrize("others", [(), (Tool("before"),), (Tool("a", "", json.dumps(TREE)), Tool("b"))])
@pytest.mark.parametrize(("arguments", "valid"), TREES)
def test_references_lead_where_they_led(others: tuple[Tool, ...], arguments: object, valid: bool) -> None:
    schema = forced_schema((*others, Tool("tree", "", json.dumps(TREE))), ForcedTool())
    Draft.check_schema(json.loads(schema))
    assert takes(schema, {"name": "tree", "arguments": arguments}) is valid


def test_a_part_with_an_id_of_its_own_keeps_its_references() -> None:
    part = {
        "$id": "https://example.org/part",
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "integer"}},
    }
    schema = forced_schema(
        (Tool("f", "", json.dumps({"properties": {"part": part}, "required": ["part"]})),), ForcedTool()
    )
    assert takes(schema, {"name": "f", "arguments": {"part": 1}})
    assert not takes(schema, {"name": "f", "arguments": {"part": "1"}})


def test_only_a_call_of_a_tool_is_taken() -> None:
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools = (Tool("now"), Tool("count", "", json.dumps(number)))
    anyone, named = forced_schema(tools, ForcedTool()), forced_schema(tools, ForcedTool("count"))
    now, count = {"name": "now", "arguments": {}}, {"name": "count", "arguments": {"n": 1}}
    assert takes(anyone, now) and takes(anyone, count) and takes(named, count) and not takes(named, now)
    for bad in (
        {"name": "now"},
        {"arguments": {}},
        {**now, "more": 1},
        {"name": "other", "arguments": {}},
        {"name": "now", "arguments": {"n": 1}},
        {"name": "count", "arguments": {}},
        {"name": "count", "arguments": []},
        [now],
    ):
        assert not takes(anyone, bad) and not takes(named, bad)


def test_name_comes_before_arguments() -> None:
    assert list(json.loads(forced_schema((Tool("f"),), ForcedTool()))["properties"]) == ["name", "arguments"]


KEYS = st.sampled_from(["a", "b", "enum", "$ref", "items"])
LEAVES: st.SearchStrategy[Any] = st.sampled_from([
    {"type": "integer"}, {"type": "string"}, {"const": "a"}, {"enum": [1, "a"]}, {"$ref": "#"},
    {"$ref": "#/$defs/part"}, {"$ref": "#/$defs/a~1b"}, True, {},
])  # fmt: skip
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({
            "type": st.just("object"),
            "properties": st.dictionaries(KEYS, inner, max_size=2),
        }),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"prefixItems": st.lists(inner, min_size=1, max_size=2)}),
    ),
    max_leaves=6,
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from([1, "a", "b", None]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(KEYS, inner, max_size=2),
    ),
    max_leaves=6,
)


@settings(max_examples=150)
@given(root=SCHEMAS, part=SCHEMAS, arguments=VALUES, among=st.booleans())
def test_a_call_is_taken_as_its_arguments_are(root: Any, part: Any, arguments: object, among: bool) -> None:
    parameters = {
        "type": "object",
        "properties": {"a": root, "b": {"$ref": "#/$defs/a~1b"}},
        "$defs": {"part": {"type": "object", "properties": {"a": part}}, "a/b": {"enum": [1, {}]}},
    }
    tools = (Tool("other"), Tool("f", "", json.dumps(parameters)))[not among :]
    alone = takes(json.dumps(parameters), arguments)
    call = {"name": "f", "arguments": arguments}
    assert takes(forced_schema(tools, ForcedTool()), call) is alone


def test_a_forced_tool_is_the_constraint_of_its_request() -> None:
    prompt = ChatPrompt((ChatMessage("user", "x"),), (Tool("f"),))
    assert effective_constraint(GenerationRequest(prompt)) is None
    assert effective_constraint(GenerationRequest(prompt, constraint=Regex("a"))) == Regex("a")
    assert effective_constraint(GenerationRequest(TextPrompt("x"), constraint=Regex("a"))) == Regex("a")
    forced = ChatPrompt(prompt.messages, prompt.tools, ForcedTool("f"))
    assert effective_constraint(GenerationRequest(forced)) == JsonSchema(
        forced_schema(prompt.tools, ForcedTool("f"))
    )


def test_the_deepest_tool_stays_below_what_engines_take() -> None:
    deepest = '{"not":' * (MAX_NESTING - 1) + "{}" + "}" * (MAX_NESTING - 1)
    tools = (Tool("f", "", deepest), Tool("g"))
    assert nesting(json.loads(forced_schema(tools, ForcedTool())), 64) == MAX_NESTING + 4
