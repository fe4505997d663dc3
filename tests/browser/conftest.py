"""One browser and one pair of processes for all tests of the pages."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.support.browser import Browser, find_chromium, running_browser
from tests.support.pair import Pair, running_pair


@pytest.fixture(scope="package")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """Without Chromium skip, but never in CI."""
    if find_chromium() is None:
        reason = "Chromium is needed for the tests of the web pages"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    async with running_browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(scope="package")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path_factory.mktemp("pair")) as running:
        yield running
