"""Replicate's SSE form: bytes, ids, and that every resume gives exactly the rest."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.event_ids import Cursor, parse_last_event_id
from edge.protocol.sse import SseEvent, SseParser
from edge.replicate.stream import START, ReplicateStream
from edge.upstream.errors import Reason, UpstreamError
from edge.upstream.events import LogLine, OutputText, PredictionEvent, Started, Status
from tests.support.records import CREATED_S, EPOCH, accepted, completed, output

TEXTS = st.lists(
    st.sampled_from(["", "a", "\n", "h", "ttps://x", "https://y", "data:z", "http:", "d", "é🙂"])
)


def read(events: list[PredictionEvent], cursor: Cursor = START, created_s: int = 0) -> list[SseEvent]:
    stream = ReplicateStream(created_s, cursor)
    return SseParser().feed(b"".join(map(stream.render, events)))


def log_of(texts: list[str], status: Status = Status.SUCCEEDED) -> list[PredictionEvent]:
    outputs = [output(number, text) for number, text in enumerate(texts, start=3)]
    error = "broke" if status is Status.FAILED else ""
    return [accepted(), Started(2, EPOCH, 7), *outputs, completed(len(texts) + 3, status, error)]


def after(log: list[PredictionEvent], sequence: int, group: int) -> list[PredictionEvent]:
    """Return the log after `sequence`, with up to `group` outputs in a row merged."""
    rest = [event for event in log if event.sequence > sequence]
    merged: list[PredictionEvent] = []
    for is_output, run in itertools.groupby(rest, key=lambda event: isinstance(event, OutputText)):
        events = list(run)
        if not is_output:
            merged += events
            continue
        for begin in range(0, len(events), group):
            part = [event for event in events[begin : begin + group] if isinstance(event, OutputText)]
            merged.append(output(part[-1].sequence, "".join(e.text for e in part), first=part[0].sequence))
    return merged


def test_the_bytes_of_a_stream() -> None:
    stream = ReplicateStream(0, START)
    frames = b"".join(map(stream.render, log_of(["Hello", " wor\nld"])))
    assert frames.decode() == (
        f"event: output\nid: {CREATED_S}:3\ndata: Hello\n\n"
        f"event: output\nid: {CREATED_S}:4\ndata:  wor\ndata: ld\n\n"
        f"event: done\nid: {CREATED_S}:5\ndata: {{}}\n\n"
    )


def test_a_failed_run_ends_with_error_then_done() -> None:
    error, done = read(log_of([], Status.FAILED))
    assert (error.event, json.loads(error.data)) == ("error", {"detail": "broke"})
    assert (done.event, json.loads(done.data)) == ("done", {"reason": "error"})
    assert error.id != done.id


def test_a_canceled_run_ends_with_its_reason() -> None:
    (done,) = read(log_of([], Status.CANCELED))
    assert (done.event, json.loads(done.data)) == ("done", {"reason": "canceled"})


def test_log_lines_are_not_shown() -> None:
    assert ReplicateStream(CREATED_S, START).render(LogLine(2, "x")) == b""


@given(texts=TEXTS, groups=st.tuples(st.integers(1, 4), st.integers(1, 4)), data=st.data())
def test_a_resume_gives_the_rest_however_entries_are_grouped(
    texts: list[str], groups: tuple[int, int], data: st.DataObject
) -> None:
    status = data.draw(st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELED]))
    log = log_of(texts, status)
    whole = read(after(log, 0, groups[0]))
    ids = [event.id for event in whole]
    assert len(set(ids)) == len(ids)
    cut = data.draw(st.integers(0, len(whole) - 1))
    head = whole[: cut + 1]
    cursor = parse_last_event_id(head[-1].id, CREATED_S)
    assert cursor is not None
    tail = read(after(log, cursor.sequence, groups[1]), cursor, CREATED_S)
    joined = "".join(event.data for event in head + tail if event.event == "output")
    assert joined == "".join(texts)
    others = [event for event in head + tail if event.event != "output"]
    assert others == [event for event in whole if event.event != "output"]


@given(texts=TEXTS, group=st.integers(1, 4))
def test_no_event_is_empty_or_looks_like_a_link(texts: list[str], group: int) -> None:
    for event in read(after(log_of(texts), 0, group)):
        assert event.id and event.data
        assert not event.data.startswith(("https:", "http:", "data:"))


@given(texts=TEXTS)
def test_ids_grow_strictly(texts: list[str]) -> None:
    cursors = [parse_last_event_id(event.id, CREATED_S) for event in read(log_of(texts))]
    assert all(
        one is not None and other is not None and one < other for one, other in itertools.pairwise(cursors)
    )


@pytest.mark.parametrize("cursor", [Cursor(1, 7), Cursor(2, 99), Cursor(4, 3)])
def test_a_forged_part_does_no_harm(cursor: Cursor) -> None:
    log = log_of(["a", "b"])
    assert read(after(log, cursor.sequence, 1), cursor, CREATED_S)[-1].event == "done"


def test_a_stream_that_cannot_be_mended_says_so_without_done() -> None:
    stream = ReplicateStream(0, START)
    sent = b"".join(map(stream.render, log_of(["a", "b"])[:-1]))
    last = SseParser().feed(sent)[-1]
    (error,) = SseParser().feed(stream.render_failure(UpstreamError(Reason.UNREACHABLE)))
    assert (error.event, error.id) == ("error", last.id)
    assert "Last-Event-ID" in json.loads(error.data)["detail"]


def test_a_resume_within_a_text_that_now_begins_with_an_empty_one() -> None:
    head, *_ = read([accepted(), output(4, "https://y", first=3), completed(5)])
    cursor = parse_last_event_id(head.id, CREATED_S)
    assert (head.data, cursor) == ("h", Cursor(2, 1))
    tail = read([output(3, ""), output(4, "https://y"), completed(5)], Cursor(2, 1), CREATED_S)
    assert [event.data for event in tail] == ["ttps://y", "{}"]


def test_who_asks_for_all_events_gets_start_tokens_and_logs_with_ids_to_resume_by() -> None:
    log = [accepted(), Started(2, EPOCH, 7), output(3, "https://x"), LogLine(4, "a line"), completed(5)]
    stream = ReplicateStream(0, START, all_events=True)
    events = SseParser().feed(b"".join(map(stream.render, log)))
    assert [(event.event, event.id.partition(":")[2], event.data) for event in events] == [
        ("start", "2", '{"started_at":"2026-11-30T18:47:08.234000Z","input_token_count":7}'),
        ("output", "2.1", "h"),
        ("output", "3", "ttps://x"),
        ("tokens", "3", "1"),
        ("logs", "4", "a line"),
        ("done", "5", "{}"),
    ]
    assert [event.event for event in read(log)] == ["output", "output", "done"]
