"""MemoryStore keeps the store port's contract, but for durability."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from service.adapters.stores.memory import MemoryStore
from service.domain.errors import StoreUnavailable
from service.ports.store import PredictionStore
from tests.contract.stores.samples import HASH, NOW, SECOND, bounded, finished, new
from tests.contract.stores.suite import StoreContract

pytestmark = pytest.mark.anyio


class TestMemoryStore(StoreContract):
    """The suite, on memory."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[PredictionStore]:
        async with MemoryStore() as store:
            yield store


@bounded
async def test_6_a_full_store_refuses_and_takes_again_when_it_has_room() -> None:
    store = MemoryStore(max_predictions=2)
    await finished(store, "p1")
    await finished(store, "p2")
    with pytest.raises(StoreUnavailable):
        await store.create(*new("p3"), HASH)
    assert len((await store.list(limit=9)).predictions) == 2
    await store.expire(NOW + SECOND, NOW + SECOND)
    assert (await store.create(*new("p3"), HASH)).fresh
