"""Rates: `edge.auth.token_bucket`, with time as an argument."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.auth.token_bucket import TokenBucket


def test_a_full_bucket_allows_its_limit_at_once_and_then_none() -> None:
    bucket = TokenBucket(600, 100.0)
    verdicts = [bucket.take(100.0) for _ in range(601)]
    assert [verdict.is_allowed for verdict in verdicts] == [True] * 600 + [False]
    assert (verdicts[0].remaining, verdicts[0].reset_s, verdicts[0].retry_after_s) == (599, 1, 0)
    assert (verdicts[-1].remaining, verdicts[-1].reset_s, verdicts[-1].retry_after_s) == (0, 60, 1)


def test_it_fills_evenly() -> None:
    bucket = TokenBucket(2, 0.0)
    assert [bucket.take(0.0).is_allowed for _ in range(3)] == [True, True, False]
    assert bucket.take(0.0).retry_after_s == 30
    assert not bucket.take(29.9).is_allowed
    assert bucket.take(30.0).is_allowed
    assert not bucket.take(31.0).is_allowed
    assert [bucket.take(1000.0).is_allowed for _ in range(3)] == [True, True, False]


def test_refused_calls_cost_nothing() -> None:
    bucket = TokenBucket(1, 0.0)
    bucket.take(0.0)
    for tenth in range(599):
        assert not bucket.take(tenth / 10).is_allowed
    assert bucket.take(60.0).is_allowed


def test_a_clock_that_steps_back_changes_nothing() -> None:
    bucket = TokenBucket(1, 50.0)
    assert bucket.take(50.0).is_allowed
    assert not bucket.take(-1e9).is_allowed
    assert not bucket.take(109.0).is_allowed
    assert bucket.take(110.0).is_allowed


def test_a_limit_is_at_least_one() -> None:
    with pytest.raises(ValueError):
        TokenBucket(0, 0.0)


@given(st.integers(1, 5000), st.lists(st.floats(0, 30), max_size=200))
def test_never_more_than_the_limit_and_what_flowed_in(limit: int, pauses: list[float]) -> None:
    bucket, now_s, allowed = TokenBucket(limit, 0.0), 0.0, 0
    for pause_s in pauses:
        now_s += pause_s
        verdict = bucket.take(now_s)
        allowed += verdict.is_allowed
        assert 0 <= verdict.remaining <= limit and 0 <= verdict.reset_s <= 60
        assert (verdict.retry_after_s > 0) == (not verdict.is_allowed)
        assert allowed <= limit + now_s * limit / 60 + 1e-6


@given(st.integers(1, 5000), st.integers(1, 100))
def test_who_waits_as_told_is_allowed(limit: int, turns: int) -> None:
    bucket, now_s = TokenBucket(limit, 0.0), 0.0
    for _ in range(turns):
        verdict = bucket.take(now_s)
        if not verdict.is_allowed:
            now_s += verdict.retry_after_s
            assert bucket.take(now_s).is_allowed
