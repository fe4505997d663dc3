"""The engine port's contract: one test a promise, the same for every adapter.

A subclass gives the fixtures that raise NotImplementedError here. Jobs are greedy unless a test
says otherwise, so that what an engine did can be compared with what it should have done.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from service.domain.request import (
    Constraint,
    Grammar,
    JsonSchema,
    Regex,
    Sampling,
    TextPrompt,
    TokenPrompt,
)
from service.ports.engine import (
    ConstraintError,
    Ended,
    EndReason,
    Engine,
    EngineEvent,
    EngineInfo,
    EngineLoadError,
    Job,
    Prefilled,
    Produced,
    PromptError,
)
from tests.contract.engines.recorder import WAIT_S, Recorder, run

GREEDY = Sampling(temperature=0.0)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine after `load`, shared by the tests of a module."""

    engine: Engine
    info: EngineInfo
    progress: tuple[float, ...]
    """What `load` reported."""


def load(engine: Engine) -> Loaded:
    """Load `engine` and keep what it reported."""
    progress: list[float] = []
    info = engine.load(progress.append)
    return Loaded(engine, info, tuple(progress))


def job(token_ids: tuple[int, ...], max_tokens: int = 24) -> Job:
    """Build a greedy job with an id of its own."""
    return Job(f"job-{next(_numbers)}", token_ids, max_tokens, GREEDY)


class EngineContract:
    """The eight promises of `service.ports.engine.Engine`."""

    @pytest.fixture
    def loaded(self) -> Loaded:
        """Give a loaded engine; usually a module-scoped one. Tests leave it idle."""
        raise NotImplementedError

    @pytest.fixture
    def new_engine(self) -> Callable[[], Engine]:
        """Give a function that makes an unloaded engine of its own; the caller closes it."""
        raise NotImplementedError

    @pytest.fixture
    def broken_engine(self) -> Engine:
        """Give an engine whose model cannot be loaded."""
        raise NotImplementedError

    @pytest.fixture
    def prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        """Give a prompt after which the model generates at least 64 tokens, greedily."""
        raise NotImplementedError

    @pytest.fixture
    def long_prompt_ids(self, engine: Engine) -> tuple[int, ...]:
        """Give a prompt that needs several prefill batches and is not in any cache yet."""
        raise NotImplementedError

    @pytest.fixture
    def ending_job(self, engine: Engine) -> Job:
        """Give a job that the model ends by itself (EOS), after at least one token of text."""
        raise NotImplementedError

    @pytest.fixture
    def eos_texts(self) -> tuple[bytes, ...]:
        """Give what end-of-turn tokens look like; the output must not hold them."""
        raise NotImplementedError

    @pytest.fixture
    def failing_job(self, engine: Engine) -> Job:
        """Give a job that the engine must end as FAILED."""
        raise NotImplementedError

    @pytest.fixture
    def engine(self, loaded: Loaded) -> Engine:
        """Give the loaded engine."""
        return loaded.engine

    @pytest.fixture
    def info(self, loaded: Loaded) -> EngineInfo:
        """Give what it said of itself."""
        return loaded.info

    def test_1_load_reports_rising_progress_and_what_it_serves(self, loaded: Loaded) -> None:
        info, progress = loaded.info, loaded.progress
        assert list(progress) == sorted(progress)
        assert all(0.0 <= fraction <= 1.0 for fraction in progress)
        assert info.engine and info.slots >= 1 and info.context_tokens >= 1
        assert info.vocabulary_size >= 1

    def test_1_load_says_what_to_do_when_the_model_cannot_be_served(self, broken_engine: Engine) -> None:
        with pytest.raises(EngineLoadError) as caught:
            broken_engine.load(lambda fraction: None)
        assert len(str(caught.value)) > 20
        broken_engine.close()

    def test_2_prepare_is_exact_and_repeatable(self, engine: Engine, info: EngineInfo) -> None:
        first = engine.prepare(TextPrompt("One two three"))
        assert first and first == engine.prepare(TextPrompt("One two three"))
        assert all(0 <= i < info.vocabulary_size for i in first)

    def test_2_prepare_keeps_token_prompts_and_appends_the_continuation(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        assert engine.prepare(TokenPrompt(prompt_ids)) == prompt_ids
        longer = engine.prepare(TokenPrompt(prompt_ids), " and so on")
        assert longer[: len(prompt_ids)] == prompt_ids and len(longer) > len(prompt_ids)

    def test_2_prepare_refuses_ids_outside_the_vocabulary(self, engine: Engine, info: EngineInfo) -> None:
        with pytest.raises(PromptError):
            engine.prepare(TokenPrompt((info.vocabulary_size,)))

    def test_2_prepare_from_many_threads_disturbs_no_running_job(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        alone = run(engine, job(prompt_ids))
        recorder = Recorder()
        engine.submit(job(prompt_ids), recorder.deliver)
        results: list[tuple[int, ...]] = []

        def prepare() -> None:
            results.extend(engine.prepare(TextPrompt("the same text")) for _ in range(8))

        threads = [threading.Thread(target=prepare) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(results) == 24 and len(set(results)) == 1
        assert recorder.ended().reason is EndReason.LENGTH
        assert recorder.data == alone.data

    def test_3_submit_returns_before_the_job_is_done(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        may_go_on = threading.Event()
        recorder = Recorder(lambda event: _hold(may_go_on))
        engine.submit(job(prompt_ids), recorder.deliver)  # would hang here if it ran the job
        may_go_on.set()
        recorder.ended()

    def test_3_events_come_in_order_one_at_a_time(self, engine: Engine, prompt_ids: tuple[int, ...]) -> None:
        inside = threading.Lock()
        overlaps: list[EngineEvent] = []

        def check(event: EngineEvent) -> None:
            if not inside.acquire(blocking=False):
                overlaps.append(event)
                return
            inside.release()

        recorder = Recorder(check)
        submitted = job(prompt_ids)
        engine.submit(submitted, recorder.deliver)
        recorder.ended()
        kinds = [type(event) for event in recorder.events]
        assert overlaps == []
        assert {event.job_id for event in recorder.events} == {submitted.id}
        first_piece = kinds.index(Produced)
        assert Prefilled not in kinds[first_piece:]
        done = [event.done for event in recorder.prefilled]
        assert done == sorted(done)
        assert all(0 <= e.cached <= e.done <= e.total for e in recorder.prefilled)
        assert all(e.total == len(prompt_ids) for e in recorder.prefilled)

    def test_3_all_slots_run_at_the_same_time(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...]
    ) -> None:
        recorders = [Recorder() for _ in range(info.slots)]
        for recorder in recorders:
            engine.submit(job(prompt_ids, 16), recorder.deliver)
        for recorder in recorders:
            assert recorder.ended().reason is EndReason.LENGTH
            assert recorder.token_count == 16

    def test_4_a_job_ends_once_and_its_slot_is_free_again(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...]
    ) -> None:
        recorders = [run(engine, job(prompt_ids, 2)) for _ in range(info.slots + 2)]
        for recorder in recorders:
            assert [e for e in recorder.events if isinstance(e, Ended)] == recorder.events[-1:]
            assert recorder.late == []

    def test_4_a_slot_can_be_taken_from_inside_the_end_of_a_job(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...]
    ) -> None:
        after = Recorder()
        others = [Recorder() for _ in range(info.slots - 1)]
        for other in others:
            engine.submit(job(prompt_ids, 32), other.deliver)

        def next_job(event: EngineEvent) -> None:
            if isinstance(event, Ended):
                engine.submit(job(prompt_ids, 2), after.deliver)

        first = Recorder(next_job)
        engine.submit(job(prompt_ids, 2), first.deliver)
        assert after.ended().reason is EndReason.LENGTH
        for other in others:
            assert other.ended().reason is EndReason.LENGTH

    def test_4_a_receiver_that_raises_does_not_keep_the_slot(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...]
    ) -> None:
        ended = threading.Semaphore(0)

        def fail(event: EngineEvent) -> None:
            if isinstance(event, Ended):
                ended.release()
            raise RuntimeError("the receiver broke")

        for _ in range(info.slots + 1):
            engine.submit(job(prompt_ids, 4), fail)
            assert ended.acquire(timeout=WAIT_S)
        assert run(engine, job(prompt_ids, 4)).ended().reason is EndReason.LENGTH

    def test_5_counts_are_exact_when_length_ends_it(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        for max_tokens in (1, 2, 17):
            recorder = run(engine, job(prompt_ids, max_tokens))
            assert recorder.ended().reason is EndReason.LENGTH
            assert recorder.ended().output_tokens == max_tokens
            assert recorder.token_count == max_tokens
            assert all(len(e.piece.token_ids) <= e.piece.token_count for e in recorder.pieces)

    def test_5_pieces_do_not_depend_on_how_many_were_asked_for(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        long = run(engine, job(prompt_ids, 24)).data
        assert long.startswith(run(engine, job(prompt_ids, 9)).data)

    def test_5_the_end_of_turn_has_no_text_and_is_counted(
        self, engine: Engine, info: EngineInfo, ending_job: Job, eos_texts: tuple[bytes, ...]
    ) -> None:
        recorder = run(engine, ending_job)
        assert recorder.ended().reason is EndReason.EOS
        assert recorder.data and not any(text in recorder.data for text in eos_texts)
        assert set(info.eos_token_ids).isdisjoint(recorder.token_ids)
        assert recorder.ended().output_tokens == recorder.token_count + 1

    def test_6_cancel_ends_a_generating_job(self, engine: Engine, prompt_ids: tuple[int, ...]) -> None:
        recorder, canceled = Recorder(), job(prompt_ids, 60)
        may_go_on = threading.Event()
        recorder = Recorder(lambda event: _hold(may_go_on) if isinstance(event, Produced) else None)
        engine.submit(canceled, recorder.deliver)
        recorder.wait_for_output()
        engine.cancel(canceled.id)
        engine.cancel(canceled.id)
        may_go_on.set()
        assert recorder.ended().reason is EndReason.CANCELED
        assert recorder.token_count < 60

    def test_6_cancel_takes_effect_in_the_prefill(
        self, engine: Engine, long_prompt_ids: tuple[int, ...]
    ) -> None:
        canceled = job(long_prompt_ids)

        def cancel(event: EngineEvent) -> None:
            if isinstance(event, Prefilled):
                engine.cancel(canceled.id)

        recorder = Recorder(cancel)
        engine.submit(canceled, recorder.deliver)
        assert recorder.ended().reason is EndReason.CANCELED
        assert recorder.pieces == []
        assert recorder.prefilled[-1].done < len(long_prompt_ids)

    def test_6_cancel_right_after_submit_ends_the_job(
        self, engine: Engine, long_prompt_ids: tuple[int, ...]
    ) -> None:
        canceled = job(long_prompt_ids)
        recorder = Recorder()
        engine.submit(canceled, recorder.deliver)
        engine.cancel(canceled.id)
        assert recorder.ended().reason is EndReason.CANCELED

    def test_6_cancel_of_a_finished_or_unknown_job_changes_nothing(
        self, engine: Engine, prompt_ids: tuple[int, ...]
    ) -> None:
        engine.cancel("never-submitted")
        finished = job(prompt_ids, 2)
        recorder = run(engine, finished)
        engine.cancel(finished.id)
        assert recorder.ended().reason is EndReason.LENGTH and recorder.late == []
        assert run(engine, job(prompt_ids, 2)).ended().reason is EndReason.LENGTH

    def test_6_cancel_leaves_the_neighbours_as_they_would_have_been(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...]
    ) -> None:
        if info.slots < 2:
            pytest.skip("one slot has no neighbours")
        alone = run(engine, job(prompt_ids, 32))
        neighbour, canceled = Recorder(), job(prompt_ids, 60)
        victim = Recorder(lambda event: engine.cancel(canceled.id) if isinstance(event, Produced) else None)
        engine.submit(job(prompt_ids, 32), neighbour.deliver)
        engine.submit(canceled, victim.deliver)
        assert victim.ended().reason is EndReason.CANCELED
        assert neighbour.ended().reason is EndReason.LENGTH
        assert neighbour.data == alone.data

    def test_7_a_failing_job_disturbs_no_other(
        self, engine: Engine, failing_job: Job, prompt_ids: tuple[int, ...]
    ) -> None:
        alone = run(engine, job(prompt_ids, 24))
        neighbour, failed = Recorder(), Recorder()
        engine.submit(job(prompt_ids, 24), neighbour.deliver)
        neighbour.wait_for_output()
        engine.submit(replace(failing_job, id=f"failing-{next(_numbers)}"), failed.deliver)
        assert failed.ended().reason is EndReason.FAILED and failed.ended().error
        assert neighbour.ended().reason is EndReason.LENGTH
        assert neighbour.data == alone.data
        assert run(engine, job(prompt_ids, 2)).ended().reason is EndReason.LENGTH

    def test_8_close_ends_what_runs_as_canceled(
        self, new_engine: Callable[[], Engine], prompt_ids: tuple[int, ...]
    ) -> None:
        engine = new_engine()
        engine.load(lambda fraction: None)
        may_go_on = threading.Event()
        recorder = Recorder(lambda event: _hold(may_go_on) if isinstance(event, Produced) else None)
        engine.submit(job(prompt_ids, 60), recorder.deliver)
        recorder.wait_for_output()
        closing = threading.Thread(target=engine.close)
        closing.start()
        may_go_on.set()
        assert recorder.ended().reason is EndReason.CANCELED
        closing.join(WAIT_S)
        assert not closing.is_alive()
        engine.close()
        assert recorder.late == []

    @pytest.mark.parametrize(
        "broken", [JsonSchema('{"type": "nonsense"}'), Regex("("), Grammar("root ::= (")], ids=str
    )
    def test_9_check_refuses_a_broken_constraint_while_every_slot_is_taken(
        self, engine: Engine, info: EngineInfo, prompt_ids: tuple[int, ...], broken: Constraint
    ) -> None:
        recorders = [Recorder() for _ in range(info.slots)]
        jobs = [job(prompt_ids, 64) for _ in recorders]
        for one, recorder in zip(jobs, recorders, strict=True):
            engine.submit(one, recorder.deliver)
        with pytest.raises(ConstraintError) as refused:
            engine.check(broken)
        assert str(refused.value)
        for one, recorder in zip(jobs, recorders, strict=True):
            engine.cancel(one.id)
            recorder.ended()


def _hold(event: threading.Event) -> None:
    assert event.wait(WAIT_S)
