"""Sampling is neutral by default and every field arrives: findings 10, 13 and 18 of the library."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from exllamav2.generator import ExLlamaV2Sampler

from service.adapters.engines.exllamav2.library_job import JobOptions, TokenFilter, _sampler_settings
from service.adapters.engines.exllamav2.sampling import cuts_itself, sampler_values
from service.domain.request import Sampling
from tests.contract.engines.recorder import Recorder, run
from tests.contract.engines.suite import job
from tests.support.exllamav2.engines import Opened, random_ids

STATE = {"token_bias", "post_sampling_hooks", "ngram_trie", "ngram_index", "ngram_history"}
"""Fields that are no setting: what a job keeps, and the bias, which is made beside them."""
PROMPT = random_ids(30, 5)


def settings_of(sampling: Sampling) -> Any:
    options = JobOptions(PROMPT, 8, 0, frozenset({2}), frozenset({2}), sampling, 1, 282, 288)
    return _sampler_settings(options)


def drawn(sampling: Sampling, logits: torch.Tensor, points: int = 4000) -> Counter[int]:
    """Draw at evenly spaced points: the library's own sampler, without chance."""
    found: Counter[int] = Counter()
    row = torch.full((1, 1, 288), float("-inf"))
    row[0, 0, : len(logits)] = logits
    for i in range(points):
        filters = [TokenFilter(sampling, frozenset({2}), 288)] if cuts_itself(sampling) else []
        sampler, context = settings_of(sampling), torch.tensor([PROMPT])
        point = (i + 0.5) / points
        token, *_ = ExLlamaV2Sampler.sample(row.clone(), sampler, context, point, Tokens(), filters=filters)
        found[int(token.item())] += 1
    return found


class Tokens:
    """What the sampler asks of a tokenizer."""

    def get_vocab_size(self) -> int:
        return 282


def test_every_field_of_the_librarys_settings_is_given() -> None:
    known = {field.name for field in dataclasses.fields(ExLlamaV2Sampler.Settings)}
    assert sampler_values(Sampling()).keys() == known - STATE


def test_defaults_draw_from_the_models_own_distribution() -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, 2.5])
    found, expected = drawn(Sampling(), logits), torch.softmax(logits, -1)
    for token, probability in enumerate(expected.tolist()):
        assert found[token] / 4000 == pytest.approx(probability, abs=0.002)


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(temperature=0), {0}),
        (Sampling(top_p=0), {0}),
        (Sampling(min_p=1), {0}),
        (Sampling(top_k=1), {0}),
        (Sampling(top_k=2), {0, 7}),
        (Sampling(top_p=0.5), {0, 7}),
        (Sampling(top_p=0.45), {0}),
        (Sampling(top_p=0.9, top_k=2), {0, 7}),
        (Sampling(top_p=0.9, min_p=0.5), {0, 7}),
        (Sampling(top_p=0.6, temperature=2.0), {0, 1, 7}),
        (Sampling(typical_p=0.2), {7}),
        (Sampling(typical_p=0.4), {1, 7}),
        (Sampling(min_p=0.5), {0, 7}),
        (Sampling(min_p=0.3), {0, 1, 7}),
        (Sampling(logit_bias=((0, -100.0),), top_k=1), {7}),
        (Sampling(logit_bias=((5, 100.0),)), {5}),
    ],
    ids=str,
)
def test_each_setting_leaves_what_it_should(sampling: Sampling, left: set[int]) -> None:
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0, 2.5])
    assert set(drawn(sampling, logits, 400)) == left


def test_penalties_reach_the_sampler() -> None:
    seen = PROMPT[5]
    row = torch.zeros(282)
    row[seen], row[3] = 1.0, 0.9
    for sampling in (
        Sampling(temperature=0, presence_penalty=0.5),
        Sampling(temperature=0, frequency_penalty=0.5),
        Sampling(temperature=0, repetition_penalty=1.5),
    ):
        assert set(drawn(sampling, row, 1)) == {3}
    assert set(drawn(Sampling(temperature=0), row, 1)) == {seen}


def test_settings_are_made_anew_for_each_job() -> None:
    first, second = settings_of(Sampling()), settings_of(Sampling())
    assert first is not second and first.ngram_history is not second.ngram_history


def tokens(tiny: Opened, sampling: Sampling, others: int = 0) -> tuple[int, ...]:
    recorder = Recorder()
    rest = [Recorder() for _ in range(others)]
    tiny.engine.submit(replace(job(PROMPT, 24), sampling=sampling, ignore_eos=True), recorder.deliver)
    for i, other in enumerate(rest):
        noise = replace(job(random_ids(30 + i, 90 + i), 24), sampling=Sampling(seed=i))
        tiny.engine.submit(noise, other.deliver)
    for one in (recorder, *rest):
        one.ended()
    return recorder.token_ids


def test_a_seed_gives_the_same_tokens_alone_and_beside_others(tiny: Opened) -> None:
    alone = tokens(tiny, Sampling(temperature=1.5, seed=1))
    assert tokens(tiny, Sampling(temperature=1.5, seed=1), others=3) == alone
    assert tokens(tiny, Sampling(temperature=1.5, seed=2)) != alone
    assert len({tokens(tiny, Sampling(temperature=1.5)) for _ in range(4)}) == 4


def test_logprobs_are_raw_whatever_the_sampling(tiny: Opened) -> None:
    def first(sampling: Sampling) -> Any:
        recorder = run(tiny.engine, replace(job(PROMPT, 1), sampling=sampling, logprobs=5, ignore_eos=True))
        (entry,) = recorder.pieces[0].piece.logprobs
        return entry

    plain = first(Sampling(temperature=0))
    assert plain.top[0].token_id == plain.token_id and plain.top[0].logprob == plain.logprob
    assert [t.logprob for t in plain.top] == sorted((t.logprob for t in plain.top), reverse=True)
    loud = Sampling(
        temperature=0, repetition_penalty=1.9, frequency_penalty=1.5, logit_bias=((plain.token_id, -100.0),)
    )
    other = first(loud)
    assert other.token_id != plain.token_id
    assert [t.token_id for t in other.top] == [t.token_id for t in plain.top]
    assert [t.logprob for t in other.top] == pytest.approx([t.logprob for t in plain.top], abs=1e-3)
    known = {t.token_id: t.logprob for t in plain.top}
    if other.token_id in known:
        assert other.logprob == pytest.approx(known[other.token_id], abs=1e-3)
    assert other.logprob < plain.logprob


def test_logprobs_join_to_the_bytes(tiny: Opened) -> None:
    recorder = run(tiny.engine, replace(job(PROMPT, 20), logprobs=0))
    entries = [entry for event in recorder.pieces for entry in event.piece.logprobs]
    assert b"".join(entry.data for entry in entries) == recorder.data
    assert len(entries) == recorder.token_count and not any(entry.top for entry in entries)


def test_a_bias_outside_of_the_vocabulary_is_the_callers_fault(tiny: Opened) -> None:
    recorder = run(tiny.engine, replace(job(PROMPT, 2), sampling=Sampling(logit_bias=((282, 1.0),))))
    assert recorder.ended().invalid and "logit_bias" in recorder.ended().error
