"""A pytest plugin: folders run in the order of `STAGES`, quick ones first (see pyproject.toml).

Inside a folder pytest-randomly's order stays as it is.
"""

from __future__ import annotations

import pytest

STAGES = ("architecture", "unit", "contract", "integration", "e2e", "conformance", "browser")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by folder; the sort is stable."""
    items.sort(key=lambda item: stage(item.nodeid))


def stage(node_id: str) -> int:
    """Return the place of a test's folder; unknown ones come last."""
    folder = node_id.removeprefix("tests/").partition("/")[0]
    return STAGES.index(folder) if folder in STAGES else len(STAGES)
