"""Owns how findings are shown: Markdown tables that also read well on a terminal. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from benchmarks.figures import Comparison, Findings

BEGIN = "<!-- figures: written by `python -m benchmarks --write` -->"
END = "<!-- end of figures -->"


class MarkersMissing(ValueError):
    """The page has no place for figures."""


def render(findings: Findings, machine: str) -> str:
    """Return the report: ratios first, then absolute numbers under the machine's name."""
    parts = []
    if findings.comparisons:
        judged = [
            (c.what, number(c.ratio), f"{number(c.spread[0])} to {number(c.spread[1])}", *_aim(c))
            for c in findings.comparisons
        ]
        parts.append(table(("ratio, ours ÷ reference", "median", "rounds", "aim", "met"), judged))
    parts.append(f"Absolute numbers, medians, on {machine}:")
    if findings.comparisons:
        measured = [
            (c.what, number(median(c.ours)), number(median(c.reference)), c.unit, c.reference_name)
            for c in findings.comparisons
        ]
        parts.append(table(("measure", "ours", "reference", "unit", "the reference"), measured))
    if findings.amounts:
        rows = [
            (a.what, number(median(a.values)), f"{number(min(a.values))} to {number(max(a.values))}", a.unit)
            for a in findings.amounts
        ]
        parts.append(table(("measure", "ours", "all tries", "unit"), rows))
    if findings.notes:
        parts.append("\n".join(f"- {note}" for note in findings.notes))
    return "\n\n".join(parts) + "\n"


def _aim(comparison: Comparison) -> tuple[str, str]:
    if comparison.aim is None:
        return "", ""
    side, bound = comparison.aim
    return f"{side.value} {bound:.2f}", "yes" if comparison.met else "no"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns. Raises ValueError for a row of another length."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        shown = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(shown)} |"

    rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
    return "\n".join([line(head), rule, *map(line, rows)])


def number(value: float) -> str:
    """Return three significant digits, whole numbers from 100 on; `–` for NaN."""
    if math.isnan(value):
        return "–"
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def replace_figures(page: str, figures: str, first: str = BEGIN, last: str = END) -> str:
    """Return `page` with `figures` between two of its lines. Raises MarkersMissing."""
    head, begin, rest = page.partition(first)
    _, end, tail = rest.partition(last)
    if not begin or not end:
        raise MarkersMissing(f"the page must have the lines {first} and {last}, in this order")
    return f"{head}{first}\n\n{figures.strip()}\n\n{last}{tail}"
