"""Stop strings, character borders and token accounting, against a naive reading of the rules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.domain.events import TokenLogprob
from service.domain.stop import Released, TextAssembler, TokenPiece

# ---------------------------------------------------------------- what one run of a job gives


@dataclass
class Run:
    """All releases of one job, and which feed each came from (-1: from `finish`)."""

    assembler: TextAssembler
    releases: list[tuple[int, Released]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(released.text for _, released in self.releases)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for _, released in self.releases for token_id in released.token_ids]

    @property
    def matched(self) -> str | int | None:
        matched = [released.matched_stop for _, released in self.releases]
        assert all(stop is None for stop in matched[:-1])
        return matched[-1] if matched else None


def run(assembler: TextAssembler, pieces: Iterable[TokenPiece]) -> Run:
    result = Run(assembler)
    for at, piece in enumerate(pieces):
        if released := assembler.feed(piece):
            result.releases.append((at, released))
    if released := assembler.finish():
        result.releases.append((-1, released))
    return result


def piece(data: bytes | str, *token_ids: int, count: int | None = None) -> TokenPiece:
    raw = data.encode() if isinstance(data, str) else data
    logprobs = tuple(TokenLogprob("", b"", token_id, -0.5) for token_id in token_ids)
    return TokenPiece(raw, token_ids, len(token_ids) if count is None else count, logprobs)


def tokens(texts: Iterable[bytes | str]) -> list[TokenPiece]:
    """One token a piece, with ids 100, 101, …"""
    return [piece(text, 100 + at) for at, text in enumerate(texts)]


# ---------------------------------------------------------------- the naive reference


def first_stop(text: str, stops: Sequence[str], armed_from: int = 0) -> tuple[str, str | None]:
    """Try every end from the left; at one end the longest stop wins."""
    for end in range(armed_from + 1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_tail(text: str, stops: Sequence[str]) -> int:
    """Length of the longest tail of `text` that begins a stop without being one."""
    sizes = [
        n for n in range(len(text) + 1) if any(s[:n] == text[len(text) - n :] for s in stops if len(s) > n)
    ]
    return max(sizes, default=0)


def decided(pieces: Sequence[TokenPiece]) -> str:
    """The characters that no further byte can change."""
    data = b"".join(part.data for part in pieces)
    text = data.decode("utf-8", "replace")
    # After an incomplete character some continuation byte joins it and adds no character.
    grown = [(data + more).decode("utf-8", "replace") for more in (b"\x80", b"\xbf")]
    return text[:-1] if len(text) in map(len, grown) else text


# ---------------------------------------------------------------- strategies

ALPHABET = "ab漢😀\u200d\ufffd"
FRAGMENTS = st.sampled_from(
    [
        *(char.encode() for char in ALPHABET + "aabb"),
        *(b"\xff", b"\x80", b"\xf0\x9f", b"\xe6\xbc", b"\xed\xa0\x80", b"\xe0\x80", b"\xef\xbf"),
    ]
)
# Two letters alone as well: there stops overlap and match in most runs.
DATA = st.lists(FRAGMENTS, max_size=14).map(b"".join) | st.text("ab", max_size=14).map(str.encode)
STOPS = st.lists(
    st.text(ALPHABET, min_size=1, max_size=4) | st.text("ab", min_size=1, max_size=6), max_size=4
)
PLACES = st.lists(st.integers(0, 40), max_size=14)  # a place twice: a token without text


def cut(data: bytes, places: Sequence[int]) -> list[TokenPiece]:
    borders = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return tokens(data[start:end] for start, end in itertools.pairwise(borders))


# ---------------------------------------------------------------- properties


@given(DATA, PLACES, STOPS)
@example(b"abb", [1, 2], ["abc", "bb"])
@example(b"xabc", [2, 3], ["bc", "abc"])
@example(b"baab", [2], ["baabb", "aaa", "ab"])
@example(b"abababc", [3, 5], ["ababc"])
@example(b"\xf0\x9f", [1], ["\ufffd"])
def test_text_and_match_equal_the_reference_for_any_split(
    data: bytes, places: list[int], stops: list[str]
) -> None:
    result = run(TextAssembler(stops), cut(data, places))
    expected = first_stop(data.decode("utf-8", "replace"), stops)
    assert (result.text, result.matched) == expected
    assert result.assembler.stopped is (expected[1] is not None)


@given(DATA, PLACES, STOPS, st.integers(0, 6), st.integers(0, 3))
def test_min_tokens_equals_the_reference_and_no_text_waits_longer_than_it_must(
    data: bytes, places: list[int], stops: list[str], min_tokens: int, resumed: int
) -> None:
    pieces = cut(data, places)
    assembler = TextAssembler(stops, min_tokens=min_tokens, resumed_tokens=resumed)
    exempt = max(0, min_tokens - resumed)
    last_counts = len(pieces) > exempt
    armed_from = len(decided(pieces[:exempt])) if last_counts else len(data)
    shown = ""
    for at, part in enumerate(pieces, 1):
        released = assembler.feed(part)
        shown += released.text if released else ""
        known = decided(pieces[:at])
        text, stop = first_stop(known, stops, armed_from)
        assert shown == (text if stop else known[: len(known) - held_tail(known, stops)])
        assert (released.matched_stop if released else None) == stop
        if stop:
            assert assembler.token_count == at
            return
    released = assembler.finish()
    shown += released.text if released else ""
    whole = data.decode("utf-8", "replace")
    assert (shown, released.matched_stop if released else None) == first_stop(whole, stops, armed_from)


@given(DATA, PLACES, STOPS)
@example(b"\xf0\x9fa", [2], ["ab"])
@example(b"\xf0\x9f\x98\x80a", [2], ["ab"])
def test_each_token_is_released_once_in_order_and_only_with_all_its_text(
    data: bytes, places: list[int], stops: list[str]
) -> None:
    pieces = cut(data, places)
    before = list(itertools.accumulate((p.data for p in pieces), initial=b""))
    ends = [len(b.decode("utf-8", "replace")) for b in before[1:]]
    starts = [
        len((b + p.data[:1]).decode("utf-8", "replace")) - 1 if p.data else end
        for b, p, end in zip(before, pieces, ends, strict=False)
    ]
    result = run(TextAssembler(stops), pieces)
    shown, count, ids = 0, 0, list[int]()
    for at, released in result.releases:
        shown += len(released.text)
        count += released.token_count
        ids += released.token_ids
        assert [entry.token_id for entry in released.logprobs] == list(released.token_ids)
        fed = pieces if at < 0 else pieces[: at + 1]
        covered = [k for k in range(len(fed)) if ends[k] <= shown]
        assert ids == [100 + k for k in covered]
        assert count == len(ids)
        partly = [k for k in range(len(fed)) if starts[k] < shown < ends[k]]
        assert released.aligned is (not partly)
    if result.matched is None:
        assert count == len(pieces) == result.assembler.token_count
        assert result.text == data.decode("utf-8", "replace")


@given(DATA, PLACES, STOPS, st.integers(0, 6), st.integers(0, 6))
def test_a_job_continued_from_an_aligned_release_goes_on_with_the_same_text(
    data: bytes, places: list[int], stops: list[str], min_tokens: int, keep: int
) -> None:
    pieces = cut(data, places)
    whole = run(TextAssembler(stops, min_tokens=min_tokens), pieces)
    kept = [released for at, released in whole.releases if at >= 0][:keep]
    if any(released.matched_stop for released in kept) or not (kept and kept[-1].aligned):
        return
    done = sum(released.token_count for released in kept)
    rest = TextAssembler(stops, min_tokens=min_tokens, resumed_tokens=done)
    again = run(rest, pieces[done:])
    assert "".join(released.text for released in kept) + again.text == whole.text
    assert again.matched == whole.matched


# ---------------------------------------------------------------- cases from the field


@pytest.mark.parametrize(
    ("texts", "stops", "text", "matched", "count"),
    [
        pytest.param(["ABC", "DEF", "G", "HI", "J", "K"], ["DEFGHIJ"], "ABC", "DEFGHIJ", 5, id="B108"),
        pytest.param([" beta", " gam", "ma", " delta"], ["beta gamma"], " ", "beta gamma", 3, id="B109-two"),
        pytest.param([" beta", " gam", "ma", " delta"], ["gamma"], " beta ", "gamma", 3, id="B109-inside"),
        pytest.param([" beta", " gam", "ma", " delta"], ["m"], " beta ga", "m", 2, id="B109-one"),
        pytest.param(
            ["alpha", " be", "ta gam", "ma x"],
            [" beta gamma"],
            "alpha",
            " beta gamma",
            4,
            id="B112",
        ),
        pytest.param(["a", "b\n"], ["\n"], "ab", "\n", 2, id="newline-ends-a-token"),
        pytest.param(["aaa", "ab"], ["aab"], "aa", "aab", 2, id="overlaps-itself"),
        pytest.param(["x", "ab", "c"], ["bc", "abc"], "x", "abc", 3, id="same-end-longest"),
        pytest.param(["x", "ab", "c"], ["abc", "bc"], "x", "abc", 3, id="same-end-any-order"),
        pytest.param(["xabcd"], ["abcd", "bc"], "xa", "bc", 1, id="earliest-end"),
        pytest.param(["x\u200d", "y"], ["\u200dy"], "x", "\u200dy", 2, id="zero-width-joiner"),
        pytest.param([b"a\xff", "b"], ["\ufffdb"], "a", "\ufffdb", 2, id="after-repair"),
    ],
)
def test_output_is_the_text_before_the_stop(
    texts: list[bytes | str], stops: list[str], text: str, matched: str, count: int
) -> None:
    result = run(TextAssembler(stops), tokens(texts))
    assert (result.text, result.matched) == (text, matched)
    assert result.assembler.stopped
    assert result.assembler.token_count == count


def test_only_a_tail_that_begins_a_stop_waits() -> None:
    result = run(TextAssembler(["DEFGHIJ"]), tokens(["ABC", "DE", "x", "D", "EFG"]))
    assert [(at, released.text) for at, released in result.releases] == [
        (0, "ABC"),
        (2, "DEx"),
        (-1, "DEFG"),
    ]


def test_each_emoji_of_four_byte_tokens_is_released_with_its_fourth_byte() -> None:
    """B102."""
    emoji = "😀😁😂😃😄😅😆😇😈😉"
    result = run(TextAssembler(), tokens(bytes([byte]) for byte in emoji.encode()))
    assert [(at, released.text) for at, released in result.releases] == [
        (4 * at + 3, char) for at, char in enumerate(emoji)
    ]
    assert all(released.token_count == 4 for _, released in result.releases)


@pytest.mark.parametrize("cut_off", [b"\xf0\x9f\x98", b"\xe6\xbc", b"\xc3"])
def test_a_character_cut_off_by_the_end_is_one_replacement(cut_off: bytes) -> None:
    """B101."""
    by_end = run(TextAssembler(), tokens([b"a" + cut_off]))
    by_token = run(TextAssembler((), [101]), tokens([b"a" + cut_off, ""]))
    assert by_end.text == by_token.text == "a\ufffd"
    assert by_end.token_ids == by_token.token_ids == [100]


def test_leading_blanks_are_kept() -> None:
    """B104."""
    assert run(TextAssembler(["\n\n"]), tokens([" leading", "  x"])).text == " leading  x"


# ---------------------------------------------------------------- tokens


def test_text_runs_ahead_of_a_token_in_which_a_stop_may_begin() -> None:
    assembler = TextAssembler(["DEF"])
    assert assembler.feed(piece("abD", 1)) == Released("ab", (), 0, (), aligned=False)
    second = assembler.feed(piece("x", 2))
    assert second is not None
    assert (second.text, second.token_ids, second.aligned) == ("Dx", (1, 2), True)


def test_a_token_that_a_stop_swallows_in_part_is_counted_and_not_released() -> None:
    assembler = TextAssembler(["DEF"])
    assert assembler.feed(piece("abDEFg", 1)) == Released("ab", (), 0, (), "DEF", aligned=False)
    assert assembler.token_count == 1


def test_tokens_without_text_go_with_the_next_text_or_with_the_end() -> None:
    result = run(TextAssembler(), tokens(["", "a", "", "b", ""]))
    assert [(r.text, r.token_ids) for _, r in result.releases] == [
        ("a", (100, 101)),
        ("b", (102, 103)),
        ("", (104,)),
    ]


def test_tokens_known_only_by_number_are_counted() -> None:
    result = run(TextAssembler(["zz"]), [piece("one", count=2), piece(" z", count=3)])
    assert [(r.text, r.token_count, r.aligned) for _, r in result.releases] == [
        ("one", 2, True),
        (" ", 0, False),
        ("z", 3, True),
    ]


def test_nothing_comes_out_of_an_empty_job() -> None:
    assembler = TextAssembler(["a"], [1])
    assert assembler.finish() is None
    assert (assembler.stopped, assembler.token_count) == (False, 0)


def test_after_the_end_pieces_are_ignored_and_not_counted() -> None:
    for assembler in (TextAssembler(["b"]), TextAssembler((), [2]), TextAssembler()):
        assembler.feed(piece("ab", 1))
        assembler.feed(piece("eos", 2)) if not assembler.stopped else None
        assembler.finish()
        count = assembler.token_count
        assert assembler.feed(piece("more", 3)) is None
        assert assembler.finish() is None
        assert assembler.token_count == count


# ---------------------------------------------------------------- stop tokens


def test_a_stop_token_releases_the_held_text_before_it_and_not_its_own() -> None:
    assembler = TextAssembler(["DEF"], [7])
    assembler.feed(piece("abD", 1))
    released = assembler.feed(piece("<|im_end|>", 7))
    assert released is not None
    assert (released.text, released.token_ids, released.matched_stop) == ("D", (1,), 7)
    assert assembler.stopped
    assert assembler.token_count == 2


def test_a_stop_token_with_nothing_held_is_reported_without_text() -> None:
    assembler = TextAssembler(stop_token_ids={7})
    assembler.feed(piece("ab", 1))
    assert assembler.feed(piece("", 7)) == Released("", (), 0, (), 7)


def test_a_stop_string_that_the_cut_off_character_completes_comes_before_the_stop_token() -> None:
    assembler = TextAssembler(["b\ufffd"], [7])
    assembler.feed(piece(b"ab\xf0\x9f", 1))
    assert assembler.feed(piece("", 7)) == Released("", (), 0, (), "b\ufffd", aligned=False)
    assert assembler.token_count == 2


def test_a_stop_token_that_shares_its_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="of its own"):
        TextAssembler((), [7]).feed(piece("a<eos>", 1, 7))


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        TextAssembler(["a", ""])


# ---------------------------------------------------------------- minimum length


@pytest.mark.parametrize(
    ("texts", "min_tokens", "text", "matched"),
    [
        pytest.param(["a", "X", "b", "X"], 1, "a", "X", id="the-token-after-the-border-counts"),
        pytest.param(["a", "X", "b", "X"], 2, "aXb", "X", id="inside-the-border-it-is-text"),
        pytest.param(["a", "X", "b", "X"], 4, "aXbX", None, id="never-reached"),
    ],
)
def test_a_stop_string_counts_when_enough_tokens_came_before(
    texts: list[str], min_tokens: int, text: str, matched: str | None
) -> None:
    result = run(TextAssembler(["X"], min_tokens=min_tokens), tokens(texts))
    assert (result.text, result.matched) == (text, matched)


def test_a_match_across_the_border_counts_where_it_ends() -> None:
    result = run(TextAssembler(["XYZ"], min_tokens=2), tokens(["a", "XY", "Z"]))
    assert (result.text, result.matched) == ("a", "XYZ")


def test_a_whole_stop_inside_the_border_is_released_at_once() -> None:
    result = run(TextAssembler(["ab"], min_tokens=9), tokens(["ab", "a", "b"]))
    assert [(at, r.text) for at, r in result.releases] == [(0, "ab"), (2, "ab")]


def test_a_stop_token_inside_the_border_is_an_ordinary_token() -> None:
    result = run(TextAssembler((), [100, 102], min_tokens=2), tokens(["a", "b", "c"]))
    assert (result.text, result.token_ids, result.matched) == ("ab", [100, 101], 102)


def test_tokens_released_before_a_continuation_count_to_the_minimum() -> None:
    result = run(TextAssembler(["X"], [101], min_tokens=3, resumed_tokens=2), tokens(["X", "b"]))
    assert (result.text, result.matched, result.assembler.token_count) == ("X", 101, 2)


def test_a_piece_that_reaches_over_the_border_does_not_count() -> None:
    assembler = TextAssembler(["X"], min_tokens=2)
    result = run(assembler, [piece("a", 1), piece("bXc", 2, 3), piece("dX", 4)])
    assert (result.text, result.matched) == ("abXcd", "X")
