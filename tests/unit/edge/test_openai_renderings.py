"""Chunks and bodies of OpenAI's API: order, shapes, exact text however it was cut."""

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.http.sse_response import SseRendering
from edge.openai.bodies import LEAST_LOGPROB, TextLogprobs
from edge.openai.chat import ChatStream, chat_body
from edge.openai.completions import CompletionStream, completion_body
from edge.openai.completions_schema import read_completion
from edge.openai.generate import TokenStream
from edge.openai.response_bodies import response_body
from edge.openai.responses import ResponseStream
from edge.openai.responses_schema import read_response, response_generation
from edge.protocol.sse import SseParser
from edge.upstream.answers import Answer, total_usage
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import Accepted, FinishReason, Status, TokenLogprob, TopLogprob, Usage
from edge.upstream.port import Choice
from tests.support.answers import LLM, NOW, completed, output, run

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8)
RESPONSE = read_response({"model": "m", "input": "x"})


def chat(choices: int = 1, *, usage: bool = False, logprobs: bool = False) -> ChatStream:
    return ChatStream(LLM, choices, include_usage=usage, logprobs=logprobs)


def completion(**fields: object) -> CompletionStream:
    return CompletionStream(LLM, read_completion({"model": "m", "prompt": "say ", **fields}))


def frames(rendering: SseRendering[Choice], events: list[Choice]) -> list[Any]:
    raw = b"".join(map(rendering.render, events))
    assert len(raw.decode().splitlines()) == raw.count(b"\n"), "another line end inside the data"
    parsed = SseParser().feed(raw)
    return [event.data if event.data == "[DONE]" else json.loads(event.data) for event in parsed]


def answer(events: list[Choice]) -> Answer:
    made = Answer()
    for choice in events:
        made.take(choice.event)
    return made


@given(TEXTS)
def test_chunks_of_a_chat_are_in_their_order_and_join_to_the_text(texts: list[str]) -> None:
    stream = chat(usage=True)
    role, *content, finish, usage, done = frames(stream, run(*texts))
    assert stream.ended and done == "[DONE]" and stream.last_words() == b""
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(list(chunk["choices"][0]["delta"]) == ["content"] for chunk in content)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in content) == "".join(texts)
    assert (finish["choices"][0]["delta"], finish["choices"][0]["finish_reason"]) == ({}, "stop")
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 10
    heads = {(c["id"], c["object"], c["created"], c["model"]) for c in (role, *content, finish, usage)}
    assert heads == {("chatcmpl-0" + "a" * 25, "chat.completion.chunk", int(NOW.timestamp()), "acme/llm")}
    whole = chat_body((Accepted(1, "x", NOW),), [answer(run(*texts))], LLM, logprobs=False)
    assert whole["choices"][0]["message"]["content"] == "".join(texts)  # type: ignore[index]  # JSON


@given(TEXTS)
def test_all_other_streams_join_to_the_same_text(texts: list[str]) -> None:
    text = "".join(texts)
    said = frames(completion(), run(*texts))
    assert "".join(chunk["choices"][0]["text"] for chunk in said[:-1]) == text
    assert "".join(c["token"] for c in frames(TokenStream(), run(*texts))[:-1]) == text
    events = frames(ResponseStream("m", RESPONSE), run(*texts))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == text
    end = events[-1]["response"]
    assert "".join(part["text"] for item in end["output"] for part in item["content"]) == text
    whole = response_body(Accepted(1, "0" + "a" * 25, NOW), answer(run(*texts)), "m", RESPONSE)
    assert whole == end


def test_role_chunks_of_all_choices_come_before_any_content() -> None:
    one, two = run("a", index=0), run("b", index=1)
    mixed = [one[0], two[0], two[1], two[2], one[1], two[3], one[2], one[3]]
    said = frames(chat(2, usage=True), mixed)
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"].get("role")) for c in said[:2]] == [
        (0, "assistant"),
        (1, "assistant"),
    ]
    assert [c["choices"][0]["index"] for c in said if c != "[DONE]" and c["choices"]] == [0, 1, 1, 1, 0, 0]
    assert said[-2]["usage"]["prompt_tokens"] == 7 and said[-2]["usage"]["completion_tokens"] == 6
    assert said[0]["id"] == "chatcmpl-0" + "a" * 25


@pytest.mark.parametrize("make", [chat, completion, TokenStream, lambda: ResponseStream("m", RESPONSE)])
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (completed(Status.FAILED, FinishReason.ERROR, error="boom"), Reason.GENERATION_FAILED),
        (completed(Status.CANCELED, FinishReason.CANCELED), Reason.GENERATION_CANCELED),
        (completed(Status.CANCELED, FinishReason.DEADLINE), Reason.GENERATION_DEADLINE),
    ],
)
def test_an_end_that_is_no_success_is_an_error_and_never_a_finish(
    make: Any, end: Any, reason: Reason
) -> None:
    stream = make()
    *before, last = run("a", end=end)
    said = b"".join(map(stream.render, before))
    with pytest.raises(UpstreamError) as caught:
        stream.render(last)
    assert caught.value.reason is reason
    for tail in (stream.render_failure(caught.value), stream.render_leaving(timedelta(seconds=1))):
        assert tail.startswith(b"event: error\ndata: ") and b'"stop"' not in said + tail
        told = json.loads(SseParser().feed(tail)[0].data)
        assert set(told["error"]) == {"message", "type", "param", "code"}


def test_nothing_is_said_before_the_first_output() -> None:
    for stream in (chat(), completion(), TokenStream(), ResponseStream("m", RESPONSE)):
        assert [stream.render(event) for event in run("", "")[:4]] == [b""] * 4


def test_a_limit_is_told() -> None:
    cut = completed(reason=FinishReason.LENGTH)
    assert frames(chat(), run("a", end=cut))[-2]["choices"][0]["finish_reason"] == "length"
    assert frames(completion(), run("a", end=cut))[-2]["choices"][0]["finish_reason"] == "length"
    last = frames(ResponseStream("m", RESPONSE), run("a", end=cut))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_no_text_at_all_still_has_its_role_and_finish() -> None:
    assert len(frames(chat(), run())) == 3
    events = frames(ResponseStream("m", RESPONSE), run())
    assert [e["type"] for e in events] == ["response.created", "response.in_progress", "response.completed"]
    assert events[-1]["response"]["output"] == []


HALVES = (
    TokenLogprob("\ufffd", b"\xf0\x9f", -0.5, (TopLogprob("\ufffd", b"\xf0\x9f", -0.5),)),
    TokenLogprob("\ufffd", b"\x99\x82", float("-inf"), (TopLogprob("x", b"x", float("-inf")),)),
)


def test_log_probabilities_carry_bytes_and_no_infinity() -> None:
    events = [*run()[:2], Choice(0, output("🙂", 3, HALVES)), run()[-1]]
    content = frames(chat(logprobs=True), events)[1]["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == "🙂"
    assert content[1]["logprob"] == content[1]["top_logprobs"][0]["logprob"] == LEAST_LOGPROB
    assert frames(chat(), events)[1]["choices"][0]["logprobs"] is None


def test_log_probabilities_of_a_response_come_with_their_text_and_in_whole() -> None:
    given = read_response({"model": "m", "input": "x", "include": ["message.output_text.logprobs"]})
    first, second = HALVES
    a = TokenLogprob("a", b"a", -0.25)
    events = [
        *run()[:2],
        *(Choice(0, output(*said)) for said in (("", 3, (a,)), ("a", 4), ("🙂", 5, HALVES), ("", 6, (a,)))),
        run()[-1],
    ]
    said = frames(ResponseStream("m", given), events)
    deltas = [e["logprobs"] for e in said if e["type"] == "response.output_text.delta"]
    assert [[entry["bytes"] for entry in delta] for delta in deltas] == [
        [[97]],
        [list(first.data), list(second.data)],
    ]
    done = next(e for e in said if e["type"] == "response.output_text.done")["logprobs"]
    assert [entry["logprob"] for entry in done] == [-0.25, -0.5, LEAST_LOGPROB, -0.25]
    (part,) = said[-1]["response"]["output"][0]["content"]
    assert part["logprobs"] == done
    whole = response_body(Accepted(1, "0" + "a" * 25, NOW), answer(events), "m", given)
    assert whole == said[-1]["response"]


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"include": []}, None),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 0}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 3}, 3),
        ({"top_logprobs": 20}, 20),
    ],
    ids=str,
)
def test_what_asks_for_log_probabilities_of_a_response(fields: dict[str, object], asked: int | None) -> None:
    given = read_response({"model": "m", "input": "x", **fields})
    assert response_generation(given, chat_template=True, default_tokens=9).top_logprobs == asked


def test_offsets_count_characters_over_chunks() -> None:
    counter = TextLogprobs(4, 1)
    first = counter.take(HALVES, 1)
    assert first["text_offset"] == [4, 4] and first["tokens"] == [r"bytes:\xf0\x9f", r"bytes:\x99\x82"]
    assert first["top_logprobs"] == [{r"bytes:\xf0\x9f": -0.5}, {"x": LEAST_LOGPROB}]
    assert counter.take((TokenLogprob("é", "é".encode(), -1.0),), 1)["text_offset"] == [5]
    assert TextLogprobs(0, 0).take(HALVES, 1)["top_logprobs"] is None
    odd = (TokenLogprob("a", b"a", -1.0), *HALVES, TokenLogprob("\ufffd", "\ufffd".encode(), -1.0))
    whole = TextLogprobs(0, 0).take((*odd, TokenLogprob("\ufffd", b"\xff", -1.0), odd[0]), 5)
    assert whole["text_offset"] == [0, 1, 1, 2, 3, 4]
    assert whole["tokens"][3:5] == ["\ufffd", r"bytes:\xff"]  # type: ignore[index]  # JSON


def test_an_echo_comes_once_and_before_everything() -> None:
    assert [c["choices"][0]["text"] for c in frames(completion(echo=True), run("a", "b"))[:-1]] == [
        "say a",
        "b",
        "",
    ]
    assert frames(completion(echo=True), run())[0]["choices"][0]["text"] == "say "
    body = read_completion({"model": "m", "prompt": "say ", "echo": True})
    whole = completion_body((Accepted(1, "x", NOW),), [answer(run("a"))], LLM, body)
    assert whole["choices"][0]["text"] == "say a"  # type: ignore[index]  # JSON


def test_usage_counts_each_prompt_once() -> None:
    ends = [completed(usage=Usage(10, 1, 2)), completed(usage=Usage(10, 9, 3))]
    assert total_usage(ends, samples=2) == Usage(10, 1, 5)
    assert total_usage(ends) == Usage(20, 10, 5)
