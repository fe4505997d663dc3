"""A fault in one job's sampling ends that job alone: finding 1 of the library.

Without the cure the survivors lose tokens, and hang where they cross a page.
"""

from __future__ import annotations

import string
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.adapters.engines.exllamav2 import library_job
from service.domain.request import Regex
from service.ports.engine import EndReason, Job
from tests.contract.engines.recorder import Recorder
from tests.contract.engines.suite import job
from tests.support.exllamav2.engines import Opened, random_ids
from tests.support.exllamav2.scripted_logits import NOT_A_NUMBER, scripted
from tests.support.exllamav2.tiny_model import token_of

LETTERS = [token_of(c) for c in string.ascii_lowercase] * 12
NEVER_WRONG = Regex("[a-z]*")


class BrokenMatcher:
    """A matcher with a fault at a later call."""

    def __init__(self, inner: Any, fault: str) -> None:
        self._inner, self._fault, self._fed = inner, fault, 0

    def consume_token(self, token_id: int) -> bool:
        self._fed += 1
        if self._fed == 3 and self._fault == "feed raises":
            raise ValueError("boom")
        return not (self._fed == 3 and self._fault == "feed refuses") and bool(
            self._inner.consume_token(token_id)
        )

    def compute_bitmask(self) -> bytes:
        if self._fed == 3 and self._fault == "mask raises":
            raise ValueError("boom")
        mask: bytes = self._inner.compute_bitmask()
        return bytes(len(mask)) if self._fed == 3 and self._fault == "mask excludes all" else mask

    def is_error(self) -> bool:
        return bool(self._inner.is_error())

    def get_error(self) -> str:
        return str(self._inner.get_error())


def three_jobs(tiny: Opened, bad: Job, bad_script: list[int]) -> tuple[Recorder, Recorder, Recorder]:
    """Run the bad job between two of 300 tokens, which cross a page."""
    first, second = job(random_ids(20, 1), 300), job(random_ids(20, 3), 300)
    scripts = {first.token_ids: LETTERS, bad.token_ids: bad_script, second.token_ids: LETTERS}
    recorders = Recorder(), Recorder(), Recorder()
    with scripted(tiny.library, scripts):
        for one, recorder in zip((first, bad, second), recorders, strict=True):
            tiny.engine.submit(one, recorder.deliver)
        for recorder in recorders:
            recorder.ended()
    return recorders


def check(tiny: Opened, recorders: tuple[Recorder, Recorder, Recorder]) -> None:
    first, bad, second = recorders
    assert bad.ended().reason is EndReason.FAILED and bad.ended().error
    for good in (first, second):
        assert good.ended().reason is EndReason.LENGTH
        assert list(good.token_ids) == LETTERS[:300]
    assert tiny.pages_free == tiny.library.generator.max_pages


@pytest.mark.parametrize("fault", ["feed raises", "feed refuses", "mask raises", "mask excludes all"])
def test_a_broken_constraint_ends_its_own_job(
    tiny: Opened, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    compile_ = tiny.engine._constraints.compile
    monkeypatch.setattr(tiny.engine._constraints, "compile", lambda c: BrokenMatcher(compile_(c), fault))
    bad = replace(job(random_ids(20, 2), 12), constraint=NEVER_WRONG)
    recorders = three_jobs(tiny, bad, LETTERS)
    check(tiny, recorders)
    assert recorders[1].token_count <= 3


def test_output_that_is_not_a_number_ends_its_own_job(tiny: Opened) -> None:
    bad = job(random_ids(20, 2), 12)
    check(tiny, three_jobs(tiny, bad, [*LETTERS[:5], NOT_A_NUMBER]))


def test_any_exception_while_a_job_is_sampled_ends_that_job(
    tiny: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = replace(job(random_ids(20, 2), 12), logprobs=1)

    def measure(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(library_job, "measure", measure)
    check(tiny, three_jobs(tiny, bad, LETTERS))


def test_an_exception_of_the_librarys_step_ends_the_thread_and_hangs_nobody(
    tiny: Opened, model_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.exllamav2.engines import opened

    died = threading.Event()
    hook: Callable[[threading.ExceptHookArgs], None] = lambda arguments: died.set()  # noqa: E731
    monkeypatch.setattr(threading, "excepthook", hook)
    with opened(model_folder) as found:

        def iterate() -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        found.library.generator.iterate = iterate
        found.engine.submit(job(random_ids(5, 1), 3), Recorder().deliver)
        assert died.wait(30)  # in the worker process this hook ends it, and the service continues the job
        del found.library.generator.iterate
