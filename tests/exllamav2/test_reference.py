"""The tiny model's greedy tokens equal transformers', recorded in `tests/vectors/exllamav2_greedy.json`.

Recorded cases have no near-tie: the two best logits differ by at least 0.06 at each step, some ten
times the error of 16-bit arithmetic here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.engines.recorder import Recorder, run
from tests.contract.engines.suite import job
from tests.support.exllamav2.engines import Opened, opened, random_ids

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "exllamav2_greedy.json").read_text()
)
CASES: list[dict[str, Any]] = VECTORS["cases"]


@pytest.fixture(autouse=True)
def same_weights(model_folder: Path) -> None:
    """Check that the model is the recorded one."""
    digest = hashlib.sha256((model_folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest == VECTORS["weights_sha256"]


def prompt(case: dict[str, Any]) -> tuple[int, ...]:
    return random_ids(case["prompt_tokens"], case["seed"])


def test_prompts_of_3_to_600_tokens_in_one_batch_give_the_recorded_tokens(model_folder: Path) -> None:
    with opened(model_folder, slots=len(CASES), batch_tokens=512) as found:
        recorders = [Recorder() for _ in CASES]
        for case, recorder in zip(CASES, recorders, strict=True):
            found.engine.submit(job(prompt(case), 24), recorder.deliver)
        for case, recorder in zip(CASES, recorders, strict=True):
            recorder.ended()
            assert list(recorder.token_ids) == case["tokens"], case["prompt_tokens"]


def test_a_prompt_from_the_cache_gives_the_same_tokens(tiny: Opened) -> None:
    for case in CASES:
        for _ in range(2):
            recorder = run(tiny.engine, job(prompt(case), 24))
            assert list(recorder.token_ids) == case["tokens"]
        assert recorder.ended().cached_tokens >= (case["prompt_tokens"] - 2) // 2


def test_the_first_logprob_is_the_models_own(tiny: Opened) -> None:
    for case in CASES:
        recorder = run(tiny.engine, replace(job(prompt(case), 1), logprobs=1))
        (entry,) = recorder.pieces[0].piece.logprobs
        assert entry.token_id == case["tokens"][0]
        assert entry.logprob == pytest.approx(case["first_logprob"], abs=0.02)


@pytest.mark.parametrize("cut", [1, 9, 20])
def test_a_continuation_from_logged_ids_goes_on_exactly(tiny: Opened, cut: int) -> None:
    for case in CASES:
        tokens = case["tokens"]
        recorder = run(tiny.engine, job((*prompt(case), *tokens[:cut]), 24 - cut))
        assert list(recorder.token_ids) == tokens[cut:]


@pytest.mark.parametrize("how", ["ngram", "draft model"])
def test_speculation_changes_neither_tokens_nor_length(model_folder: Path, how: str) -> None:
    """Finding 6: without the cure a job of 24 tokens ends after 20."""
    changes: dict[str, Any] = {"ngram_draft": True} if how == "ngram" else {"draft_model_path": model_folder}
    with opened(model_folder, **changes) as found:
        recorders = [Recorder() for _ in CASES[:4]]
        for case, recorder in zip(CASES, recorders, strict=False):
            found.engine.submit(job(prompt(case), 24), recorder.deliver)
        for case, recorder in zip(CASES, recorders, strict=False):
            assert recorder.ended().output_tokens == 24
            assert list(recorder.token_ids) == case["tokens"]
        assert found.pages_free == found.library.generator.max_pages


def test_speculation_at_the_very_end_of_context_and_cache(model_folder: Path) -> None:
    with opened(model_folder, context_tokens=512, cache_tokens=512, draft_model_path=model_folder) as found:
        assert found.info.context_tokens == 508
        ends = replace(job(random_ids(500, 3), 8), ignore_eos=True)
        assert run(found.engine, ends).ended().output_tokens == 8
