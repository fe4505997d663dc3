"""The body of a create: every field's types and bounds, and how faults are told."""

import json

import pytest

from edge.replicate.errors import invalid_input
from edge.replicate.inputs import INPUT_LABEL, echo_input, input_label, to_generation
from edge.replicate.schemas import InvalidInput, read_create
from edge.upstream.events import Status
from edge.upstream.records import ChatInput, ChatMessage, Generation, PredictionRecord, TextInput
from tests.support.records import EPOCH


def generation(*, chat_template: bool = True, **fields: object) -> Generation:
    body = read_create({"version": "a/b", "input": {"prompt": "x", **fields}})
    return to_generation(body.input, chat_template=chat_template)


def faults(body: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        read_create(body)  # type: ignore[arg-type]  # whatever JSON can hold
    return [(fault.type, fault.field) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", bad) for bad in (0, -1, 1.5, 1.0, "5", True, [], {})),
        *(("max_new_tokens", bad) for bad in (0, "5", True)),
        *(("min_tokens", bad) for bad in (-1, 1.5, "0", False)),
        *(("temperature", bad) for bad in (-0.1, 2.1, "1", True)),
        *(("top_p", bad) for bad in (-0.1, 1.1, "1", False)),
        *(("top_k", bad) for bad in (-2, 1.5, "1")),
        *(("min_p", bad) for bad in (-0.1, 1.1)),
        *(("presence_penalty", bad) for bad in (-2.1, 2.1)),
        *(("frequency_penalty", bad) for bad in (-2.1, 2.1)),
        *(("repetition_penalty", bad) for bad in (0, -1, 10.5)),
        *(("seed", bad) for bad in (-5, 1.5, "1", 2**63)),
        *(("stop", bad) for bad in (5, {}, [1], [""], [None], ["x" * 257], ["x"] * 17, "")),
        *(("stop_sequences", bad) for bad in (5, [1], ["é" * 129], ["x"] * 17)),
        *(("json_schema", bad) for bad in (5, [], "[]", "{", "null", True, {"a": "x" * 17_000})),
        *(("prompt", bad) for bad in ("", 5, ["x"], True)),
        *(("system_prompt", bad) for bad in (5, ["x"])),
        *(("messages", bad) for bad in ({}, "[]", [], [5], [{}], [{"role": "x", "content": "y"}])),
    ],
)
def test_a_bad_value_is_refused_naming_its_field(field: str, value: object) -> None:
    given = {"prompt": "x", field: value}
    if field == "messages":
        del given["prompt"]
    named = [name for _, name in faults({"version": "a/b", "input": given})]
    assert named and all(name == f"input.{field}" or name.startswith(f"input.{field}.") for name in named)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", good) for good in (None, 1, 10**9, 10**15)),
        *(("temperature", good) for good in (None, 0, 1, 2, 0.7)),
        *(("top_p", good) for good in (None, 0, 0.0001, 1, 1.0)),
        *(("top_k", good) for good in (None, 0, -1, 1, 10**12)),
        *(("min_p", good) for good in (None, 0, 1)),
        *(("seed", good) for good in (None, -1, 0, 2**63 - 1)),
        *(("stop", good) for good in (None, [], "x", ["x"] * 16, "a,b")),
        *(("stop_sequences", good) for good in (None, [], "", "a,b", ["a,b"])),
        *(("json_schema", good) for good in (None, {}, "{}", {"type": "object"})),
        ("unknown", {"anything": [1]}),
        ("stream", True),
    ],
)
def test_a_good_value_is_taken(field: str, value: object) -> None:
    assert generation(**{field: value}).input == ChatInput((ChatMessage("user", "x"),))


def test_null_means_the_default() -> None:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stop_sequences", "json_schema")
    assert generation(**dict.fromkeys(names)) == generation()
    assert generation().stopping.max_tokens == 512


@pytest.mark.parametrize("field", ["top_k", "seed"])
def test_minus_one_means_the_default(field: str) -> None:
    assert generation(**{field: -1}) == generation()


def test_stop_is_one_string_and_stop_sequences_is_split_at_commas() -> None:
    assert generation(stop="a,b").stopping.stop == ("a,b",)
    assert generation(stop_sequences="a,b,").stopping.stop == ("a", "b")
    assert generation(stop_sequences=["a,b"]).stopping.stop == ("a,b",)
    assert generation(stop=["x"], stop_sequences="a,b").stopping.stop == ("x", "a", "b")


def test_max_new_tokens_is_another_name_and_must_agree() -> None:
    assert generation(max_new_tokens=7).stopping.max_tokens == 7
    assert generation(max_new_tokens=7, max_tokens=7).stopping.max_tokens == 7
    both = {"version": "a/b", "input": {"prompt": "x", "max_tokens": 7, "max_new_tokens": 8}}
    assert faults(both) == [("conflict", "input.max_new_tokens")]


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"input\.min_tokens"):
        generation(min_tokens=9, max_tokens=8)
    with pytest.raises(InvalidInput, match=r"input\.min_tokens"):
        generation(min_tokens=513)


def test_a_prompt_becomes_one_user_turn_or_raw_text() -> None:
    system, user = ChatMessage("system", "s"), ChatMessage("user", "x")
    assert generation(system_prompt="s").input == ChatInput((system, user))
    assert generation(system_prompt="").input == ChatInput((user,))
    assert generation(chat_template=False).input == TextInput("x")


def test_what_needs_a_chat_template_is_refused_without_one() -> None:
    with pytest.raises(InvalidInput, match=r"input\.system_prompt"):
        generation(chat_template=False, system_prompt="s")
    turns = [{"role": "user", "content": "x"}]
    with pytest.raises(InvalidInput, match=r"input\.messages"):
        generation(chat_template=False, prompt=None, messages=turns)


def test_messages_and_prompt_exclude_each_other() -> None:
    turns = [{"role": "user", "content": "x"}]
    both = {"version": "a/b", "input": {"prompt": "x", "messages": turns}}
    assert faults(both) == [("conflict", "input.messages")]
    assert generation(prompt="", messages=turns).input == ChatInput((ChatMessage("user", "x"),))


@pytest.mark.parametrize("body", [None, [], "x", 5, True, 1.5])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert faults(body) == [("invalid_type", "(root)")]


@pytest.mark.parametrize("value", [None, [], "x", 5, True])
def test_an_input_that_is_no_object_is_refused(value: object) -> None:
    assert faults({"version": "a/b", "input": value}) == [("invalid_type", "input")]


def test_a_missing_input_and_a_missing_prompt_are_told_apart() -> None:
    assert faults({"version": "a/b"}) == [("required", "(root)")]
    assert faults({"version": "a/b", "input": {}}) == [("required", "input")]


@pytest.mark.parametrize("name", ["webhook", "webhook_completed"])
def test_a_webhook_is_refused_and_null_is_not(name: str) -> None:
    assert faults({"version": "a/b", "input": {"prompt": "x"}, name: "https://h"}) == [("unsupported", name)]
    read_create({"version": "a/b", "input": {"prompt": "x"}, name: None})


def test_the_problem_has_the_recorded_shape() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_create({"version": "a/b", "input": {"temperature": 3}})
    problem = invalid_input(caught.value.faults)
    assert (problem.status, problem.title) == (422, "Input validation failed")
    assert problem.detail == "- input.temperature: Must be less than or equal to 2\n"
    with pytest.raises(InvalidInput) as caught:
        read_create({"version": "a/b", "input": {}})
    assert invalid_input(caught.value.faults).detail == "- input: prompt is required\n"


def test_faults_do_not_repeat_what_the_caller_sent() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_create(
            {"version": "a/b", "input": {"prompt": "x", "temperature": "SECRET", "stop": ["SECRET" * 99]}}
        )
    assert "SECRET" not in json.dumps([f.description for f in caught.value.faults])


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "x"},
        {"prompt": "x", "system_prompt": "s", "max_new_tokens": 5, "temperature": 0, "top_k": -1, "seed": -1},
        {"prompt": "x", "stop": ["a"], "json_schema": {"type": "object"}},
        {"prompt": "x", "stop_sequences": ["a", "b"]},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}], "system_prompt": "s"},
    ],
)
def test_the_echo_is_what_was_given(given: dict[str, object]) -> None:
    body = read_create({"version": "a/b", "input": {**given, "dropped": 1, "top_p": None}})
    label = input_label(body.input)
    asked = to_generation(body.input, chat_template=True)
    record = PredictionRecord("a" * 26, "a/b", asked, Status.STARTING, (), created_at=EPOCH, labels=(label,))
    echoed = echo_input(record)
    if "json_schema" in given:
        assert json.loads(str(echoed.pop("json_schema"))) == given["json_schema"]
        given = {name: value for name, value in given.items() if name != "json_schema"}
    assert echoed == given


def test_the_label_holds_no_text_of_the_caller() -> None:
    fields = {"prompt": "SECRET", "system_prompt": "SECRET", "stop": "SECRET", "stop_sequences": "SECRET"}
    body = read_create({"version": "a/b", "input": {**fields, "json_schema": {"a": "SECRET"}, "seed": 4}})
    name, text = input_label(body.input)
    assert name == INPUT_LABEL and "SECRET" not in text and json.loads(text)["seed"] == 4
