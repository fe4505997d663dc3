"""Server-sent events: frames, and reading them back however they are split."""

import itertools
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.sse import (
    COMMENT,
    RESPONSE_HEADERS,
    TIMEOUT_408,
    SseEvent,
    SseLimitExceeded,
    SseParser,
    encode_event,
    encode_retry,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "sse.json"
CASES: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text("utf-8"))

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=[]))
ENCODABLE = st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("\r\n \0:")))
NAME = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1)


def parse(stream: bytes, cuts: list[int] | None = None) -> tuple[SseParser, list[SseEvent]]:
    parser = SseParser()
    bounds = [0, *sorted(cut % (len(stream) + 1) for cut in cuts or []), len(stream)]
    events = [event for start, end in itertools.pairwise(bounds) for event in parser.feed(stream[start:end])]
    return parser, events


def lines_normalised(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("case", CASES["encode"], ids=lambda case: case["name"])
def test_frame_is_as_the_vectors_say(case: dict[str, Any]) -> None:
    frame = encode_event(case["event"], case["id"], case["data"])
    assert frame == case["frame"].encode()


@pytest.mark.parametrize("bad", ["a\rb", "a\nb", "a\0b", "\n", "\0"])
def test_line_ends_and_nul_in_event_or_id_are_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="event must not contain"):
        encode_event(bad, "1", "x")
    with pytest.raises(ValueError, match="id must not contain"):
        encode_event("output", bad, "x")


def test_empty_event_name_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        encode_event("", "1", "x")


@given(NAME, ENCODABLE, st.lists(st.integers(min_value=0)))
def test_what_is_encoded_is_read_back_however_it_is_split(name: str, data: str, cuts: list[int]) -> None:
    stream = encode_event(name, name, data) + COMMENT + encode_event(None, None, data)
    parser, events = parse(stream, cuts)
    text = lines_normalised(data)
    assert events == [SseEvent(name, text, name), SseEvent("message", text, name)]
    assert parser.last_event_id == name


@given(ANY_TEXT)
def test_any_text_can_be_sent_and_only_surrogates_are_replaced(data: str) -> None:
    frame = encode_event("output", "1:1", data)
    assert b"\r" not in frame
    (event,) = parse(frame)[1]
    surrogates_replaced = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in data)
    assert event.data == lines_normalised(surrogates_replaced)


@given(st.lists(st.text(alphabet="a\n ", min_size=1), min_size=1))
def test_pieces_of_text_join_to_the_text(pieces: list[str]) -> None:
    stream = b"".join(encode_event("output", f"1:{n}", text) for n, text in enumerate(pieces))
    assert "".join(event.data for event in parse(stream)[1]) == "".join(pieces)


@pytest.mark.parametrize("case", CASES["parse"], ids=lambda case: case["name"])
@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_stream_is_read_as_the_vectors_say_however_it_is_split(case: dict[str, Any], step: int) -> None:
    stream = bytes.fromhex(case["stream_hex"]) if "stream_hex" in case else case["stream"].encode()
    parser, events = parse(stream, list(range(0, len(stream), step)))
    assert events == [SseEvent(**event) for event in case["events"]]
    assert parser.last_event_id == case["last_event_id"]
    retry_ms = case["retry_ms"]
    assert parser.retry == (None if retry_ms is None else timedelta(milliseconds=retry_ms))


def test_event_is_reported_at_the_cr_of_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [SseEvent("message", "x", "")]
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: y\n\n") == [SseEvent("message", "y", "")]


@given(
    st.lists(st.binary() | st.sampled_from([b"data", b":", b" ", b"\r", b"\n", b"id", b"retry", b"\0"])),
    st.lists(st.integers(min_value=0)),
)
def test_any_bytes_are_read_the_same_however_they_are_split(parts: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(parts)
    whole_parser, whole = parse(stream)
    split_parser, split = parse(stream, cuts)
    assert split == whole
    assert split_parser.last_event_id == whole_parser.last_event_id
    assert split_parser.retry == whole_parser.retry
    assert split_parser.last_comment == whole_parser.last_comment


@pytest.mark.parametrize("stream", [b"data: 123456789\n", b"data: 123456789", b"x" * 16])
def test_long_line_is_refused_complete_or_not(stream: bytes) -> None:
    assert SseParser(max_line_bytes=15).feed(b"data: 12345678\n") == []
    with pytest.raises(SseLimitExceeded, match="line exceeds 14 bytes"):
        SseParser(max_line_bytes=14).feed(stream)
    parser = SseParser(max_line_bytes=14)
    with pytest.raises(SseLimitExceeded):
        for byte in stream:
            parser.feed(bytes([byte]))


def test_event_of_many_lines_is_refused_when_too_large_and_the_next_starts_anew() -> None:
    parser = SseParser(max_event_bytes=20)
    assert len(parser.feed(b"data: 1234\ndata: 5678\n\n" * 3)) == 3
    with pytest.raises(SseLimitExceeded, match="event exceeds 20 bytes"):
        parser.feed(b"data: 1234\n" * 3)


def test_keep_alive_is_a_comment_line_that_ends_no_event() -> None:
    parser, events = parse(b"id: 1\n" + COMMENT + b"data: x\n" + COMMENT + b"\n")
    assert events == [SseEvent("message", "x", "1")]
    assert parser.last_comment == ""


def test_timeout_is_a_comment_readers_pass_over() -> None:
    parser, events = parse(TIMEOUT_408)
    assert events == []
    assert parser.last_comment == "408: 408 Request Timeout"


@pytest.mark.parametrize("milliseconds", [0, 1, 1000, 86_400_000])
def test_retry_line_belongs_to_the_next_frame(milliseconds: int) -> None:
    delay = timedelta(milliseconds=milliseconds)
    parser, events = parse(encode_retry(delay) + encode_event("e", "1", "x"))
    assert events == [SseEvent("e", "x", "1")]
    assert parser.retry == delay


def test_retry_is_in_whole_milliseconds_and_never_negative() -> None:
    assert encode_retry(timedelta(microseconds=1999)) == b"retry: 1\n"
    with pytest.raises(ValueError, match="negative"):
        encode_retry(timedelta(microseconds=-1))


def test_response_headers_name_the_type_and_forbid_caching_and_buffering() -> None:
    headers = dict(RESPONSE_HEADERS)
    assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    assert headers[b"x-accel-buffering"] == b"no"
    directives = set(headers[b"cache-control"].split(b", "))
    assert directives == {b"no-cache", b"no-store", b"no-transform"}
