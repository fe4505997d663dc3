"""What fits and what does not: findings 7, 8 and 15 of the library, and admission by pages."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from service.adapters.engines.exllamav2.settings import PAGE_TOKENS
from service.ports.engine import EndReason, EngineEvent, EngineLoadError, Job, Prefilled, Produced
from tests.contract.engines import suite
from tests.contract.engines.recorder import Recorder, run
from tests.support.exllamav2.engines import Opened, opened, random_ids


def job(token_ids: tuple[int, ...], max_tokens: int) -> Job:
    """Build a job that only its length ends."""
    return replace(suite.job(token_ids, max_tokens), ignore_eos=True)


def idle(found: Opened) -> None:
    """Check that no job holds a page."""
    assert found.pages_free == found.library.generator.max_pages


def test_prompt_and_max_tokens_may_fill_the_context_and_no_more(model_folder: Path) -> None:
    with opened(model_folder, context_tokens=300, cache_tokens=1024) as found:
        assert found.info.context_tokens == 300
        full = run(found.engine, job(random_ids(290, 1), 10))
        assert full.ended().reason is EndReason.LENGTH and full.ended().output_tokens == 10
        over = run(found.engine, job(random_ids(290, 1), 11))
        assert over.ended().reason is EndReason.FAILED and over.ended().invalid
        assert "300" in over.ended().error
        assert run(found.engine, job(random_ids(5, 1), 2)).ended().reason is EndReason.LENGTH
        idle(found)


def test_the_context_is_never_said_larger_than_the_cache_or_the_model(model_folder: Path) -> None:
    with opened(model_folder, context_tokens=4096, cache_tokens=512) as found:
        assert found.info.context_tokens == 512
        assert run(found.engine, job(random_ids(500, 1), 12)).ended().output_tokens == 12
    with opened(model_folder, context_tokens=4096, cache_tokens=8192) as found:
        assert found.info.context_tokens == 2048


def test_host_memory_is_for_the_slots_only(tiny: Opened) -> None:
    assert tiny.library.generator.logits_pinned.shape[0] == tiny.info.slots


def test_a_job_waits_until_its_pages_are_free_and_others_behind_it_wait_too(model_folder: Path) -> None:
    with opened(model_folder, cache_tokens=4 * PAGE_TOKENS) as found:
        order: list[str] = []
        lock = threading.Lock()
        left_waiting: list[int] = []
        generator = found.library.generator
        iterate = generator.iterate

        def watched() -> list[dict[str, object]]:
            results: list[dict[str, object]] = iterate()
            left_waiting.append(len(generator.pending_jobs))
            return results

        generator.iterate = watched

        def note(event: EngineEvent) -> None:
            if isinstance(event, Prefilled):
                with lock:
                    if event.job_id not in order:
                        order.append(event.job_id)

        big, bigger, small = (
            job(random_ids(300, 1), 300),
            job(random_ids(400, 2), 300),
            job(random_ids(5, 3), 4),
        )
        recorders = [Recorder(note) for _ in range(3)]
        for one, recorder in zip((big, bigger, small), recorders, strict=True):
            found.engine.submit(one, recorder.deliver)
        assert [r.ended().reason for r in recorders] == [EndReason.LENGTH] * 3
        assert order == [big.id, bigger.id, small.id]
        assert set(left_waiting) == {0}  # the library never has a job that it cannot start
        idle(found)


def test_a_prompt_shared_with_a_running_job_takes_its_pages_once(model_folder: Path) -> None:
    with opened(model_folder, cache_tokens=4 * PAGE_TOKENS) as found:
        prompt = random_ids(2 * PAGE_TOKENS + 1, 5)
        met = threading.Event()

        def first_token(event: EngineEvent) -> None:
            if isinstance(event, Produced) and event.piece.token_count and not met.is_set():
                started.add(event.job_id)
                if len(started) == 2:
                    met.set()

        started: set[str] = set()
        recorders = [Recorder(first_token) for _ in range(2)]
        for recorder in recorders:
            found.engine.submit(job(prompt, 200), recorder.deliver)
        # 3 pages each, of 4: they run together only because two are shared.
        for recorder in recorders:
            assert recorder.ended().output_tokens == 200
        assert met.is_set()
        overlap = recorders[0].events[-1], recorders[1].prefilled[0]
        assert overlap[1].cached >= PAGE_TOKENS
        idle(found)


@pytest.mark.parametrize("state", ["waiting", "prefill", "decode", "finished"])
def test_cancel_frees_the_pages_in_every_state(model_folder: Path, state: str) -> None:
    with opened(model_folder, cache_tokens=8 * PAGE_TOKENS) as found:
        victim = job(random_ids(1500, 9), 2 if state == "finished" else 300)
        hog: Recorder | None = None
        if state == "waiting":
            hog = Recorder()
            found.engine.submit(job(random_ids(1500, 10), 400), hog.deliver)
            hog.wait_for_output()

        def cancel(event: EngineEvent) -> None:
            wanted = {"prefill": Prefilled, "decode": Produced}.get(state)
            if wanted is not None and isinstance(event, wanted):
                found.engine.cancel(victim.id)

        recorder = Recorder(cancel)
        found.engine.submit(victim, recorder.deliver)
        if state == "finished":
            recorder.ended()
        if state in ("waiting", "finished"):
            found.engine.cancel(victim.id)
        ended = recorder.ended()
        assert ended.reason is (EndReason.LENGTH if state == "finished" else EndReason.CANCELED)
        if hog is not None:
            assert hog.ended().output_tokens == 400
        again = run(found.engine, job(victim.token_ids, 3))
        assert again.ended().output_tokens == 3
        idle(found)


def test_long_prompts_are_read_one_at_a_time_beside_running_streams(tiny: Opened) -> None:
    steps: list[int] = []
    generator = tiny.library.generator
    iterate = generator.iterate

    def counted() -> list[dict[str, object]]:
        before = {id(j): j.sequences[0].kv_position for j in generator.active_jobs + generator.pending_jobs}
        results: list[dict[str, object]] = iterate()
        jobs = generator.active_jobs
        steps.append(sum(max(0, j.sequences[0].kv_position - before.get(id(j), 0) - 1) for j in jobs))
        return results

    generator.iterate = counted
    try:
        stream = Recorder()
        tiny.engine.submit(job(random_ids(5, 1), 100), stream.deliver)
        stream.wait_for_output()
        readers = [Recorder() for _ in range(3)]
        for i, reader in enumerate(readers):
            tiny.engine.submit(job(random_ids(700, 60 + i), 2), reader.deliver)
        for reader in readers:
            assert reader.ended().output_tokens == 2
        stream.ended()
    finally:
        del generator.iterate
    assert 0 < max(steps) <= tiny.engine._settings.chunk_tokens


@pytest.mark.parametrize(
    "changes",
    [{"token_ids": ()}, {"token_ids": (10**6,)}],
    ids=["empty", "unknown id"],
)
def test_a_prompt_that_cannot_run_ends_alone(tiny: Opened, changes: dict[str, tuple[int, ...]]) -> None:
    bad: Job = replace(job((1,), 10), **changes)  # type: ignore[arg-type]  # names come from Job
    recorder = run(tiny.engine, bad)
    assert recorder.ended().reason is EndReason.FAILED and recorder.ended().invalid
    assert run(tiny.engine, job(random_ids(5, 1), 2)).ended().reason is EndReason.LENGTH


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": 0}, {"batch_tokens": 1}, {"draft_tokens": 8}, {"rope_scale": 0.0}, {"rope_alpha": 0.5},
        {"yarn_factor": 4.0}, {"gpu_split_gb": (0.0,)}, {"gpu_split_gb": (1.0,), "gpu_reserve_mb": (1,)},
        {"attention": "flash_attn"},
    ],
    ids=str,
)  # fmt: skip
def test_settings_out_of_bounds_are_named(model_folder: Path, changes: dict[str, object]) -> None:
    with pytest.raises(EngineLoadError) as caught, opened(model_folder, **changes):
        pass
    assert next(iter(changes)) in str(caught.value)
