"""Deployments: what the settings may say, how defaults fill a body, what limits refuse."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from edge.replicate.deployments import Deployment, parse_deployments
from edge.replicate.schemas import DEFAULT_MAX_TOKENS, InvalidInput, read_create
from edge.settings import SettingsError, describe, load_settings

ONE = '{"acme/chat": {"model": "acme/llm", "input": {"max_tokens": 64}, "limits": {"max_tokens": 99}}}'


def deployment(**fields: object) -> Deployment:
    return Deployment.model_validate({"model": "acme/llm", **fields})


def filled(one: Deployment, given: dict[str, JsonValue]) -> JsonValue:
    body = one.fill({"input": given, "stream": True})
    assert isinstance(body, dict) and body["stream"] is True
    return body["input"]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "5", "{", '{"acme": {"model": "a/b"}}', '{"a/b/c": {"model": "a/b"}}', '{"a/b": {}}',
        '{"a/b": {"model": "a/b", "inputs": {}}}', '{"a/b": {"model": "a/b", "input": {"promt": "x"}}}',
        '{"a/b": {"model": "a/b", "input": {"temperature": 3}}}',
        '{"a/b": {"model": "a/b", "limits": {"max_tokens": 0}}}', '{"a/b": {"model": 5}}',
        '{"../b": {"model": "a/b"}}', '{"a/b": {"model": "a/b", "limits": {"tokens": 5}}}',
    ],
)  # fmt: skip
def test_what_is_no_deployment_stops_the_start(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_deployments(text)
    file = tmp_path / "deployments.json"
    file.write_text(text)
    with pytest.raises(SettingsError, match="EDGE_DEPLOYMENTS"):
        load_settings({"EDGE_DEPLOYMENTS": str(file)})


def test_the_setting_is_json_or_the_path_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "deployments.json"
    file.write_text(ONE)
    by_path = load_settings({"EDGE_DEPLOYMENTS": str(file)})
    by_text = load_settings({"EDGE_DEPLOYMENTS": f" {ONE}"})
    assert by_path.deployments == by_text.deployments == parse_deployments(ONE)
    assert "EDGE_DEPLOYMENTS=acme/chat" in describe(by_path)
    assert load_settings({"EDGE_DEPLOYMENTS": ""}).deployments == {} == load_settings({}).deployments
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({"EDGE_DEPLOYMENTS": str(tmp_path / "none.json")})


def test_a_callers_value_counts_and_null_means_the_default() -> None:
    one = deployment(input={"temperature": 0.5, "top_p": 0.9})
    given: dict[str, JsonValue] = {"prompt": "x", "temperature": None, "top_p": 0.1}
    assert filled(one, given) == {"prompt": "x", "temperature": 0.5, "top_p": 0.1}


@pytest.mark.parametrize(
    ("default", "given", "wanted"),
    [
        ({"max_tokens": 5}, {"prompt": "x", "max_new_tokens": 7}, {"prompt": "x", "max_new_tokens": 7}),
        ({"max_new_tokens": 5}, {"prompt": "x", "max_tokens": 7}, {"prompt": "x", "max_tokens": 7}),
        ({"prompt": "p"}, {"messages": [1]}, {"messages": [1]}),
        ({"messages": [{"role": "user", "content": "m"}]}, {"prompt": "x"}, {"prompt": "x"}),
        ({"prompt": "p"}, {"messages": []}, {"prompt": "p", "messages": []}),
        ({"prompt": "p"}, {}, {"prompt": "p"}),
    ],
)
def test_a_callers_value_replaces_a_default_of_the_same_meaning(
    default: dict[str, object], given: dict[str, JsonValue], wanted: dict[str, object]
) -> None:
    assert filled(deployment(input=default), given) == wanted


@pytest.mark.parametrize("most", [10, 10_000])
def test_without_a_value_the_limit_or_the_usual_default_holds(most: int) -> None:
    one = deployment(limits={"max_tokens": most})
    body = read_create(one.fill({"input": {"prompt": "x"}}))
    one.check(body.input)
    assert body.input.max_tokens == min(most, DEFAULT_MAX_TOKENS)


def test_limits_refuse_and_name_the_field() -> None:
    one = deployment(limits={"max_tokens": 10, "prompt_bytes": 6})
    body = read_create({"input": {"prompt": "한글", "system_prompt": "x", "max_tokens": 11}})
    with pytest.raises(InvalidInput) as raised:
        one.check(body.input)
    assert [fault.field for fault in raised.value.faults] == ["input.max_tokens", "input"]
    one.check(read_create({"input": {"prompt": "한글", "max_tokens": 10}}).input)


@pytest.mark.parametrize("body", [None, 5, [], {}, {"input": None}, {"input": "x"}])
def test_a_malformed_body_is_left_to_its_check(body: JsonValue) -> None:
    assert deployment(input={"temperature": 0}).fill(body) == body
