"""Events and bodies of Anthropic's API: order, shapes, exact text however it was cut."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.anthropic.messages import PING, MessageStream, stop_of, whole_body
from edge.protocol.sse import SseEvent, SseParser
from edge.upstream.answers import Answer
from edge.upstream.errors import UpstreamError
from edge.upstream.events import Accepted, Completed, FinishReason, Status, Usage
from edge.upstream.port import Choice
from tests.support.answers import ID, NOW, completed, run

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=8)


def events(choices: list[Choice]) -> list[SseEvent]:
    stream = MessageStream("acme/llm", 100)
    return SseParser().feed(b"".join(map(stream.render, choices)))


def data(event: SseEvent) -> Any:
    return json.loads(event.data)


@given(TEXTS)
def test_events_are_in_their_order_and_join_to_the_text(texts: list[str]) -> None:
    said = events(run(*texts))
    assert all(event.event == data(event)["type"] for event in said)
    names = [event.event for event in said]
    text = "".join(texts)
    block = ["content_block_start", *["content_block_delta"] * sum(map(bool, texts)), "content_block_stop"]
    assert names == ["message_start", "ping", *(block if text else []), "message_delta", "message_stop"]
    deltas = [data(event)["delta"] for event in said if event.event == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == text
    answer = Answer()
    for choice in run(*texts):
        answer.take(choice.event)
    whole: Any = whole_body(Accepted(1, ID, NOW), answer, "acme/llm", 100)
    assert "".join(part["text"] for part in whole["content"]) == text
    assert data(said[0])["message"].keys() == whole.keys()


def test_the_start_has_the_input_s_tokens_and_the_end_the_output_s() -> None:
    start, *_, delta, _stop = events(run("a", end=completed(usage=Usage(7, 0, 3))))
    assert data(start)["message"]["usage"]["input_tokens"] == data(delta)["usage"]["input_tokens"] == 7
    assert data(delta)["usage"]["output_tokens"] == 3


@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        (completed(), "end_turn", None),
        (completed(stop="END"), "stop_sequence", "END"),
        (completed(reason=FinishReason.LENGTH, usage=Usage(7, 0, 100)), "max_tokens", None),
        (completed(reason=FinishReason.LENGTH, usage=Usage(7, 0, 99)), "model_context_window_exceeded", None),
    ],
)
def test_every_end_has_its_reason(end: Completed, reason: str, sequence: str | None) -> None:
    assert stop_of(end, 100) == {"stop_reason": reason, "stop_sequence": sequence}


def test_a_failure_is_an_error_event_with_nothing_after_it() -> None:
    stream = MessageStream("acme/llm", 100)
    *before, last = run("a", end=completed(Status.FAILED, FinishReason.ERROR, error="boom"))
    for choice in before:
        stream.render(choice)
    with pytest.raises(UpstreamError) as caught:
        stream.render(last)
    (event,) = SseParser().feed(stream.render_failure(caught.value))
    assert event.event == "error"
    assert data(event) == {
        "type": "error",
        "error": {"type": "api_error", "message": "boom"},
        "request_id": "0" + ID[1:],
    }


def test_a_ping_is_a_whole_event() -> None:
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'
