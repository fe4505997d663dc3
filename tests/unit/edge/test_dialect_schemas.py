"""Bodies of the OpenAI and Anthropic APIs: what each field becomes. Refusals are told by the e2e tests."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.anthropic import errors as anthropic_errors
from edge.anthropic.errors import RequestRefused as MessageRefused
from edge.anthropic.schemas import CountBody, MessageBody, chat_input, message_generation
from edge.anthropic.schemas import read_body as read_message_body
from edge.http.wire_json import data_frame, encode_json
from edge.openai import errors as openai_errors
from edge.openai.chat_schema import chat_generations, read_chat
from edge.openai.completions_schema import completion_generations, read_completion
from edge.openai.errors import RequestRefused
from edge.openai.responses_schema import read_response, response_generation
from edge.upstream.errors import Reason, UpstreamError, Violation
from edge.upstream.field_names import renamed
from edge.upstream.records import ChatInput, ChatMessage, Generation, TextInput, TokenInput

USER = {"role": "user", "content": "hello"}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    """messages model n stop temperature logit_bias response_format max_tokens tools stream_options seed
    prompt input system stop_sequences output_config text echo""".split()
)


def chat(**fields: object) -> tuple[Generation, ...]:
    body = read_chat({"model": "m", "messages": [USER], **fields})
    return chat_generations(body, chat_template=True, default_tokens=100)


def message(**fields: object) -> Generation:
    body = read_message_body(MessageBody, {"model": "m", "max_tokens": 9, "messages": [USER], **fields})
    return message_generation(body, chat_template=True)


def test_every_field_of_a_chat_reaches_the_request() -> None:
    schema = {"type": "object"}
    (made,) = chat(
        temperature=0.5, top_p=0.5, top_k=4, min_p=0.1, repetition_penalty=1.1, frequency_penalty=-1,
        presence_penalty=1, seed=5, logit_bias={"7": 1, "3": -1}, stop="x", stop_token_ids=[1],
        ignore_eos=True, min_tokens=2, max_tokens=50, max_completion_tokens=60, logprobs=True,
        top_logprobs=2, priority=3,
        response_format={"type": "json_schema", "json_schema": {"schema": schema}},
    )  # fmt: skip
    sampling, stopping = made.sampling, made.stopping
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.5, 4, 0.1)
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.1, -1)
    assert (sampling.presence_penalty, sampling.seed) == (1, 5)
    assert sampling.logit_bias == ((3, -1), (7, 1))
    assert (stopping.stop, stopping.stop_token_ids, stopping.ignore_eos) == (("x",), (1,), True)
    assert (stopping.min_tokens, stopping.max_tokens) == (2, 60)
    assert (made.top_logprobs, made.priority) == (2, 3)
    assert made.json_schema is not None and json.loads(made.json_schema) == schema


def test_null_and_absent_are_the_default() -> None:
    names = "n stop seed temperature top_k logit_bias max_tokens response_format user".split()
    assert chat(**dict.fromkeys(names)) == chat()
    assert chat()[0].stopping.max_tokens == 100 and chat()[0].top_logprobs is None
    assert chat(logprobs=True)[0].top_logprobs == 0


def test_choices_differ_in_their_seed_only() -> None:
    made = chat(n=3, seed=2**63 - 1)
    assert [g.sampling.seed for g in made] == [2**63 - 1, 0, 1]
    assert {g.sampling.seed for g in chat(n=3)} == {None} == {g.sampling.seed for g in chat(n=3, seed=-1)}
    assert len({(g.input, g.stopping) for g in made}) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "a"),
    ],
)
def test_contents_are_text_or_parts_of_text(content: object, text: str) -> None:
    turn = {"role": "user", "content": content}
    assert chat(messages=[turn])[0].input == ChatInput((ChatMessage("user", text),))
    assert message(messages=[turn]).input == ChatInput((ChatMessage("user", text),))


def test_an_assistant_s_content_may_be_null() -> None:
    (made,) = chat(messages=[USER, {"role": "assistant", "content": None, "tool_calls": []}, USER])
    assert made.input == ChatInput(
        (ChatMessage("user", "hello"), ChatMessage("assistant", ""), ChatMessage("user", "hello"))
    )


def test_prompts_of_a_completion() -> None:
    def inputs(prompt: object, **fields: object) -> list[object]:
        body = read_completion({"model": "m", "prompt": prompt, **fields})
        return [generation.input for generation in completion_generations(body)]

    assert inputs("a") == [TextInput("a")]
    assert inputs(["a", "b"], n=2) == [TextInput("a"), TextInput("a"), TextInput("b"), TextInput("b")]
    assert inputs([1, 2]) == [TokenInput((1, 2))]
    assert inputs([[1], [2]]) == [TokenInput((1,)), TokenInput((2,))]
    with pytest.raises(RequestRefused) as caught:
        inputs(["x"] * 20, n=2)
    assert caught.value.param == "prompt"


def test_an_input_of_a_response() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    body = read_response({"model": "m", "input": items, "instructions": "be", "store": False})
    made = response_generation(body, chat_template=True, default_tokens=9)
    roles = [(m.role, m.content) for m in made.input.messages]  # type: ignore[union-attr]  # a chat
    assert roles == [("system", "be"), ("user", "a"), ("assistant", "b"), ("user", "c")]


def test_turns_of_a_message_are_merged_and_thoughts_dropped() -> None:
    made = message(
        system=[{"type": "text", "text": "s"}],
        messages=[
            USER,
            {"role": "user", "content": "again"},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "…"}, {"type": "text", "text": "b"}],
            },
            USER,
        ],
        stop_sequences=["x"],
        top_k=3,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "enabled"},
    )
    assert [(m.role, m.content) for m in made.input.messages] == [  # type: ignore[union-attr]  # a chat
        ("system", "s"),
        ("user", "hello\nagain"),
        ("assistant", "b"),
        ("user", "hello"),
    ]
    assert (made.stopping.stop, made.sampling.top_k, made.stopping.max_tokens) == (("x",), 3, 9)
    assert made.json_schema is not None


def test_a_model_without_a_template_takes_no_conversations() -> None:
    with pytest.raises(RequestRefused) as caught:
        chat_generations(read_chat({"model": "m", "messages": [USER]}), chat_template=False, default_tokens=9)
    assert caught.value.param == "messages"
    counted = read_message_body(CountBody, {"model": "m", "messages": [USER]})
    with pytest.raises(MessageRefused, match="messages: "):
        chat_input(counted, chat_template=False)


@given(st.dictionaries(FIELDS, JSON) | JSON)
def test_whatever_is_sent_is_taken_or_refused_in_words(body: Any) -> None:
    if isinstance(body, dict):
        body = {"model": "m", "messages": [USER], "prompt": "x", "input": "x", "max_tokens": 5} | body
    for read in (
        lambda: chat_generations(read_chat(body), chat_template=True, default_tokens=9),
        lambda: completion_generations(read_completion(body)),
        lambda: response_generation(read_response(body), chat_template=True, default_tokens=9),
    ):
        try:
            read()
        except RequestRefused as error:
            assert error.message and error.code
    try:
        message_generation(read_message_body(MessageBody, body), chat_template=True)
    except MessageRefused as refused:
        assert str(refused)


def test_every_reason_has_its_form_in_both_apis() -> None:
    assert set(openai_errors.KINDS) == set(anthropic_errors.KINDS) == set(Reason)
    for reason in Reason:
        error = UpstreamError(reason)
        openai, anthropic = openai_errors.upstream_response(error), anthropic_errors.upstream_response(error)
        assert openai.status_code == error.outcome.http_status
        assert ("retry-after" in openai.headers) == ("retry-after" in anthropic.headers)
        assert ("retry-after" in openai.headers) == error.outcome.retryable
        for answer in (openai, anthropic):
            again = answer.status_code in (408, 409, 429) or answer.status_code >= 500
            assert not again or "retry-after" in answer.headers or answer.headers["x-should-retry"] == "false"


def test_a_violation_has_the_field_s_name_of_each_api() -> None:
    error = UpstreamError(Reason.INVALID_REQUEST, violations=(Violation("json_schema", "is bad"),))
    body: Any = openai_errors.upstream_body(error, {"json_schema": "response_format"})
    assert body["error"]["param"] == "response_format"
    told: Any = anthropic_errors.upstream_body(error)
    assert told["error"]["message"] == "output_config.format: is bad"
    assert renamed("generation.stopping.stop[3]", {}, index=".[{}]") == "stop.[3]"
    assert renamed("chat.messages[0].content", {}, index=".{}") == "messages.0.content"


@given(JSON)
def test_json_on_the_wire_is_one_line_by_any_measure(value: object) -> None:
    text = encode_json({"value": value, "ends": "\u2028\u2029\u0085\x0b\x0c\x1c\r\n"}).decode()
    assert len(text.splitlines()) == 1
    assert json.loads(text)["ends"] == "\u2028\u2029\u0085\x0b\x0c\x1c\r\n"


def test_a_frame_has_only_the_lines_it_is_given() -> None:
    assert data_frame(1) == b"data: 1\n\n"
    assert data_frame({}, event="x", event_id="5") == b"event: x\nid: 5\ndata: {}\n\n"
