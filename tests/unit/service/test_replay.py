"""Replay: what comes out after it is exactly what an uninterrupted run would have gone on with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.continuation import REPLAY_LIMIT_TOKENS, with_seed, worth_replaying
from service.domain.request import GenerationRequest, Regex, Sampling, TextPrompt
from service.domain.stop import Released, TextAssembler, TokenPiece
from service.engine_worker.replay import Diverged, Replay

TOKENS = [b"a", b" b", b"ST", b"OP", b"\xf0\x9f", b"\x98\x80", b"\xff", b""]
PIECES = st.lists(st.sampled_from(TOKENS), max_size=30)


def run(pieces: list[bytes]) -> list[Released]:
    """Return what an assembler with a stop string releases, the flush at the end included."""
    assembler = TextAssembler(["STOP"])
    found = [assembler.feed(TokenPiece(piece, (n,), 1)) for n, piece in enumerate(pieces)]
    return [released for released in [*found, assembler.finish()] if released is not None]


def folded(released: list[Released]) -> tuple[str, tuple[int, ...], int]:
    text = "".join(r.text for r in released)
    return text, tuple(i for r in released for i in r.token_ids), sum(r.token_count for r in released)


@given(PIECES, st.data())
def test_replay_swallows_the_log_and_nothing_else(pieces: list[bytes], data: st.DataObject) -> None:
    whole = run(pieces)
    stopped = bool(whole) and whole[-1].matched_stop is not None  # then the log has its end, too
    cut = data.draw(st.integers(0, len(whole) - stopped))
    text, ids, count = folded(whole[:cut])
    replay = Replay(text, count)
    shown = [new for released in whole if (new := replay.take(released)) is not None]
    assert folded(shown) == folded(whole[cut:])
    assert (text, ids) == folded(whole[:cut])[:2]
    assert replay.over
    assert shown == whole[cut:]


def test_another_text_than_the_log_is_noticed_at_once() -> None:
    replay = Replay("abc", 3)
    assert replay.take(Released("a", (1,), 1, ())) is None
    with pytest.raises(Diverged):
        replay.take(Released("x", (2,), 1, ()))


def test_a_text_that_runs_past_the_log_within_a_token_is_another_text() -> None:
    with pytest.raises(Diverged):
        Replay("ab", 2).take(Released("abc", (1,), 1, ()))


def test_what_can_be_told_apart_is_replayed() -> None:
    greedy = GenerationRequest(TextPrompt("x"), Sampling(temperature=0))
    seeded = GenerationRequest(TextPrompt("x"), Sampling(seed=1))
    free = GenerationRequest(TextPrompt("x"))
    confined = GenerationRequest(TextPrompt("x"), constraint=Regex("a+"))
    assert worth_replaying(greedy, 10) and worth_replaying(seeded, 10)
    assert not worth_replaying(free, 10)
    assert not worth_replaying(greedy, REPLAY_LIMIT_TOKENS + 1)
    assert worth_replaying(confined, REPLAY_LIMIT_TOKENS + 1)


def test_every_prediction_gets_a_seed_of_its_own_that_a_restart_finds_again() -> None:
    free = GenerationRequest(TextPrompt("x"))
    first, again, other = (with_seed(free, i).sampling.seed for i in ("p1", "p1", "p2"))
    assert first == again != other
    assert with_seed(GenerationRequest(TextPrompt("x"), Sampling(seed=7)), "p1").sampling.seed == 7
