"""Lists: the query, what is refused, and what the next page's URL says."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from edge.replicate.listing import ListQuery, read_list_query
from edge.replicate.schemas import InvalidInput

MOMENTS = st.datetimes(datetime(1, 1, 3), datetime(9998, 12, 31), timezones=st.just(UTC))


@given(after=MOMENTS, before=MOMENTS, cursor=st.text("ab_-", min_size=1), source=st.sampled_from(["", "api"]))
def test_the_next_query_asks_for_the_same(
    after: datetime, before: datetime, cursor: str, source: str
) -> None:
    query = ListQuery("first", after, before, source)
    again = read_list_query(QueryParams(query.next_query(cursor)))
    assert again == ListQuery(cursor, after, before, source)


@given(st.text(max_size=60))
def test_any_text_is_a_moment_or_a_fault(text: str) -> None:
    for name in ("created_after", "created_before", "cursor", "source"):
        try:
            query = read_list_query(QueryParams({name: text}))
        except InvalidInput as error:
            assert error.faults[0].field == name
        else:
            assert query.after_exclusive is None or query.after_exclusive.tzinfo is UTC


def test_created_after_counts_its_own_moment_in() -> None:
    moment = datetime(2026, 11, 30, 18, 47, 8, tzinfo=UTC)
    query = read_list_query(QueryParams("created_after=2026-11-30T18:47:08Z"))
    assert query.created_after == moment and query.after_exclusive == moment - timedelta(microseconds=1)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "0001-01-01", "0001-01-01T00:00:00+14:00"])
def test_the_beginning_of_time_is_taken_as_early_enough(text: str) -> None:
    try:
        assert read_list_query(QueryParams({"created_after": text})).after_exclusive is not None
    except InvalidInput as error:
        assert error.faults[0].field == "created_after"


def test_what_it_does_not_know_is_ignored() -> None:
    assert read_list_query(QueryParams("page=2&limit=5")) == ListQuery()
