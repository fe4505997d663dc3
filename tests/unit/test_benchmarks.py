"""The benchmarks' pure parts: percentiles, ratios, the report, its place in the page. No thresholds."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import main
from benchmarks.figures import Aim, Amount, Comparison, Findings, percentile, quotient
from benchmarks.load_plan import LoadFailed, LoadReport, StreamReport
from benchmarks.load_test.report import Asked, check, findings_of
from benchmarks.report import BEGIN, END, MarkersMissing, number, render, replace_figures, table

VALUES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1)


def comparison(aim: tuple[Aim, float] | None = None) -> Comparison:
    return Comparison("speed", "tokens/s", (90.0, 95.0, 50.0), (100.0, 100.0, 80.0), "the other", aim)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 2), (51, 3), (75, 3), (99, 4), (100, 4)]
)
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([4, 1, 3, 2], percent) == expected


@given(VALUES, st.floats(0, 100))
def test_a_percentile_is_a_value_that_enough_do_not_exceed(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-6


def test_a_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize("percent", [-1, 101, math.nan])
def test_a_percentile_outside_its_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], percent)


def test_the_ratio_is_that_of_the_medians_and_the_spread_that_of_the_rounds() -> None:
    assert comparison().ratio == pytest.approx(0.9)
    assert comparison().spread == pytest.approx((0.625, 0.95))


def test_a_reference_of_zero_gives_no_ratio() -> None:
    assert math.isnan(quotient(1, 0))


@pytest.mark.parametrize(
    ("aim", "met"),
    [
        (None, None),
        ((Aim.AT_LEAST, 0.8), True),
        ((Aim.AT_LEAST, 0.95), False),
        ((Aim.AT_MOST, 0.95), True),
        ((Aim.AT_MOST, 0.8), False),
    ],
)
def test_an_aim_has_a_side(aim: tuple[Aim, float] | None, met: bool | None) -> None:
    assert comparison(aim).met is met


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"), (0.01234, "0.0123"), (0.95, "0.950"), (1.0, "1.00"), (12.34, "12.3"), (99.96, "100.0"),
        (123.4, "123"), (38681.2, "38681"), (-2.5, "-2.50"), (math.nan, "–"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_table_is_aligned_markdown() -> None:
    assert table(("a", "bcd"), [("ef", "g")]).splitlines() == ["| a  | bcd |", "|----|-----|", "| ef | g   |"]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        table(("a", "b"), [("c", "d", "e")])


def test_a_report_has_ratios_before_absolute_numbers_and_the_machine() -> None:
    findings = Findings((comparison((Aim.AT_LEAST, 0.95)),)) + Findings(
        amounts=(Amount("memory", "KiB", (4.0, 6.0, 5.0)),), notes=("lengths differ",)
    )
    shown = render(findings, "a machine")
    order = (
        "0.900",
        "0.625 to 0.950",
        "≥ 0.95",
        "| no",
        "on a machine",
        "90.0",
        "5.00",
        "4.00 to 6.00",
        "- lengths",
    )
    places = [shown.index(text) for text in order]
    assert places == sorted(places)


def test_figures_replace_what_stood_between_the_markers_and_nothing_else() -> None:
    page = f"before\n\n{BEGIN}\nold {END}\nafter\n"
    once = replace_figures(page, "new\n")
    assert once == f"before\n\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_figures(once, "new\n") == once


@pytest.mark.parametrize("page", ["", f"{BEGIN} only", f"{END} before {BEGIN}"])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(MarkersMissing):
        replace_figures(page, "new")


def test_our_own_page_has_its_markers() -> None:
    page = Path(main.PAGE).read_text()
    assert replace_figures(page, "figures").count("figures\n") >= 1


def test_tokens_per_second_run_from_the_first_post_to_the_last_token() -> None:
    streams = [StreamReport(10.0, 10.5, 12.0, 3, 5, 30), StreamReport(10.25, 11.25, 15.0, 4, 5, 20)]
    report = LoadReport(streams, {}, 0.0)
    assert report.tokens_per_s == pytest.approx(10.0)
    assert report.first_token_s == pytest.approx([0.5, 1.0])
    assert (report.output_tokens, report.events) == (50, 7)


ASKED = Asked(requests=2, concurrency=2, input_tokens=10, output_tokens=5)
END_OF_RUN = {"type": "bench_complete", "status": "ok"}


def ended(**fields: object) -> dict[str, object]:
    return {"type": "request_end", "prompt_tokens": 10, "total_tokens": 5, "error": "", **fields}


def test_a_load_tool_s_run_is_good_when_every_answer_was_whole() -> None:
    events = [{"type": "request_start"}, ended(), ended(prompt_tokens=11), END_OF_RUN]
    check(ASKED, events)
    keys = ("tg_throughput", "tg_req_throughput", "pp_throughput", "e2e_ttft")
    result = json.dumps({"benchmarks": [{key: {"mean": 1, "values": [1.0, 3.0]} for key in keys}]})
    findings = findings_of(ASKED, "\n".join(map(json.dumps, events)), result)
    assert findings.amounts[0].values == (2,) and findings.amounts[-1].values == (1.0, 3.0)


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([ended(error="HTTP 503: busy"), ended(), END_OF_RUN], "1 of 2 requests failed: HTTP 503"),
        ([ended(), END_OF_RUN], "ended 1 requests, not 2"),
        ([ended(), ended(prompt_tokens=0), END_OF_RUN], "1 of 2 streams were not whole"),
        (
            [ended(total_tokens=4), ended(), END_OF_RUN],
            "1 of 2 streams were not whole, the first had 10 and 4",
        ),
        ([ended(), ended()], "did not come to its end"),
        ([ended(), ended(), {**END_OF_RUN, "status": "error"}], "did not come to its end"),
    ],
)
def test_a_load_tool_s_run_fails_by_any_request(events: list[dict[str, object]], told: str) -> None:
    with pytest.raises(LoadFailed, match=told):
        check(ASKED, events)
