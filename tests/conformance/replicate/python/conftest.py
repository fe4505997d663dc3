"""Replicate's own Python client, pointed at the pair."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import replicate

from tests.conformance.replicate.python.wire import Wire, replicate_client
from tests.support.pair import Pair


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def py1(pair: Pair, wire: Wire) -> Iterator[replicate.Client]:
    with replicate_client(pair.edge.url, wire) as client:
        yield client
