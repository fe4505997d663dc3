"""Exact text and lengths, with every token dictated: findings 3, 4, 5, 6, 9, 11 and 12 of the library."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from service.domain.request import TextPrompt
from service.ports.engine import EndReason
from tests.contract.engines.recorder import Recorder, run
from tests.contract.engines.suite import job
from tests.support.exllamav2.engines import Opened, random_ids, said
from tests.support.exllamav2.scripted_logits import scripted
from tests.support.exllamav2.tiny_model import EOS, TURN_END, token_of

_seeds = itertools.count(1)


def say(tiny: Opened, script: list[int], max_tokens: int = 64, **changes: Any) -> Recorder:
    """Run a job that says the script."""
    prompt = random_ids(12, next(_seeds))
    with scripted(tiny.library, {prompt: script}):
        return run(tiny.engine, replace(job(prompt, max_tokens), **changes))


def ids(tiny: Opened, text: str) -> list[int]:
    """Return the ids of a text in the middle of another."""
    return list(tiny.engine.prepare(TextPrompt(text)))[1:]


def of_bytes(data: bytes) -> list[int]:
    """Return the ids of single bytes, also of what is no character."""
    alphabet_start = 6
    return [alphabet_start + b for b in data]


def test_text_held_for_a_stop_string_is_not_lost_at_the_end_of_turn(tiny: Opened) -> None:
    recorder = say(tiny, [*ids(tiny, "abc STO"), EOS])
    assert said(recorder, ["STOP"]) == ("abc STO", None)
    assert recorder.ended().reason is EndReason.EOS


def test_a_stop_string_is_found_across_tokens_and_the_rest_is_never_shown(tiny: Opened) -> None:
    recorder = say(tiny, [*ids(tiny, "Hello STOP more"), EOS])
    assert said(recorder, ["STOP"]) == ("Hello ", "STOP")


@pytest.mark.parametrize("stops", [["three", "o three"], ["o three", "three"]])
def test_of_two_stop_strings_that_one_token_completes_the_longer_wins(tiny: Opened, stops: list[str]) -> None:
    recorder = say(tiny, [*ids(tiny, "one two three four"), EOS])
    assert said(recorder, stops) == ("one tw", "o three")


def test_a_lone_invalid_byte_holds_nothing_back(tiny: Opened) -> None:
    script = [*of_bytes(b"\xe9"), *ids(tiny, "abc STOP def"), EOS]
    seen: list[int] = []
    recorder = say(tiny, script)
    seen = [event.piece.token_count for event in recorder.pieces]
    assert seen == [1] * (len(script) - 1)
    assert recorder.data == b"\xe9abc STOP def"
    assert said(recorder, ["STOP"]) == ("\N{REPLACEMENT CHARACTER}abc ", "STOP")


@pytest.mark.parametrize("text", ["naïve café", "日本語テキスト", "ok 🙂👍🏽 done", "👨‍👩‍👧‍👦!"])
def test_characters_cut_over_tokens_come_out_whole(tiny: Opened, text: str) -> None:
    recorder = say(tiny, [*ids(tiny, text), EOS])
    assert said(recorder)[0] == text


def test_a_character_cut_off_by_the_length_is_one_replacement(tiny: Opened) -> None:
    script = ids(tiny, "hi 🙂")
    recorder = say(tiny, script, max_tokens=len(script) - 1)
    assert said(recorder)[0] == "hi \N{REPLACEMENT CHARACTER}"
    assert recorder.ended().reason is EndReason.LENGTH


@pytest.mark.parametrize("ending", [EOS, TURN_END])
def test_each_known_end_of_turn_ends_it_without_text(tiny: Opened, ending: int) -> None:
    recorder = say(tiny, [*ids(tiny, "done"), ending])
    assert recorder.data == b"done"
    assert recorder.ended().reason is EndReason.EOS
    assert recorder.ended().output_tokens == recorder.token_count + 1


def test_ignore_eos_never_draws_it(tiny: Opened) -> None:
    recorder = say(tiny, [*ids(tiny, "ab"), EOS], max_tokens=10, ignore_eos=True)
    assert recorder.ended().reason is EndReason.LENGTH and recorder.ended().output_tokens == 10
    assert EOS not in recorder.token_ids and TURN_END not in recorder.token_ids


@pytest.mark.parametrize("minimum", [0, 1, 4])
def test_the_end_of_turn_may_come_right_after_min_tokens(tiny: Opened, minimum: int) -> None:
    recorder = say(tiny, [EOS], min_tokens=minimum)
    assert recorder.ended().output_tokens == minimum + 1
    assert recorder.token_count == minimum


def test_a_stop_token_counts_from_min_tokens_on_and_is_ordinary_before(tiny: Opened) -> None:
    a, b = token_of("a"), token_of("b")
    recorder = say(tiny, [a, b, a, b, a], stop_token_ids=(b,), min_tokens=2)
    assert recorder.token_ids == (a, b, a, b)
    assert recorder.ended().reason is EndReason.EOS and recorder.ended().output_tokens == 4


def test_a_stop_token_that_is_an_end_of_turn_still_counts_with_ignore_eos(tiny: Opened) -> None:
    recorder = say(tiny, [token_of("a"), EOS], stop_token_ids=(EOS,), ignore_eos=True)
    assert recorder.ended().reason is EndReason.EOS and recorder.data == b"a"


def test_a_job_of_one_token_gets_one(tiny: Opened) -> None:
    recorder = say(tiny, ids(tiny, "abc"), max_tokens=1)
    assert recorder.ended().output_tokens == 1 and recorder.data == b"a"


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 512])
def test_every_prompt_is_reported_read_before_its_first_token(tiny: Opened, count: int) -> None:
    prompt = random_ids(count, next(_seeds))
    for _ in range(2):  # the second time it is in the cache
        recorder = run(tiny.engine, job(prompt, 2))
        last = recorder.prefilled[-1]
        assert (last.done, last.total) == (count, count)
    assert recorder.ended().cached_tokens == max(0, count - 1) - (1 if count == 2 else 0)
