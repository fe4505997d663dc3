"""What readers without scripts see: everything as text, nothing of what was removed."""

from __future__ import annotations

from datetime import timedelta
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.upstream.events import Status, Usage
from edge.web.plain_view import MAX_TEXT_CHARS, render_plain
from tests.support.records import EPOCH, record

TAGS = {"dl", "div", "dt", "dd", "h2", "pre", "p"}


class Reader(HTMLParser):
    """Collects tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    return reader


@given(st.text(), st.text(), st.text())
def test_any_text_stays_text(output: str, prompt: str, error: str) -> None:
    shown = render_plain(record(Status.FAILED, output=(output,), error=error), {"prompt": prompt})
    assert read(shown).tags <= TAGS
    assert "</noscript" not in shown


def test_it_shows_status_output_and_input() -> None:
    ended = record(
        Status.SUCCEEDED,
        output=("a <b>", "c"),
        completed_at=EPOCH + timedelta(seconds=1),
        usage=Usage(7, 0, 5),
    )
    text = read(render_plain(ended, {"prompt": "ask", "stop": ["x", "é"], "seed": 3})).text
    for part in ("acme/llm", "succeeded", "7 in, 5 out", "a <b>c", "ask", '"é"', "Seed3"):
        assert part in text
    assert "not finished" not in text


@pytest.mark.parametrize("status", [Status.STARTING, Status.PROCESSING])
def test_one_that_runs_says_so(status: Status) -> None:
    assert "not finished" in render_plain(record(status), {})


def test_removed_data_is_said_to_be_removed() -> None:
    removed = record(Status.SUCCEEDED, data_removed=True, generation=None)
    shown = render_plain(removed, {"prompt": "must not be shown"})
    assert "removed" in shown and "must not be shown" not in shown


def test_long_text_is_cut() -> None:
    shown = render_plain(record(Status.SUCCEEDED, output=("x" * (MAX_TEXT_CHARS + 1),)), {})
    assert len(shown) < MAX_TEXT_CHARS + 2000 and "cut here" in shown
