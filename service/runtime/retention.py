"""Retention: data of ended predictions is removed after a while, their records later.

One sweep a minute at most; how far it is late changes nothing a reader relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import anyio
import structlog

from service.domain.errors import StoreUnavailable
from service.ports.clock import Clock
from service.ports.store import PredictionIndex

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long what is kept."""

    data: timedelta = timedelta(hours=1)
    """Request and output, from the end on."""
    records: timedelta = timedelta(hours=24)
    """The record, from the end on; not below `data`."""


async def keep_clean(store: PredictionIndex, clock: Clock, settings: RetentionSettings) -> None:
    """Remove what has outlived its retention, until cancelled."""
    pause = min(settings.data / 4, timedelta(minutes=1))
    while True:
        now = clock.now()
        try:
            removed = await store.expire(now - settings.data, now - settings.records)
        except StoreUnavailable as error:
            log.warning("expire_failed", detail=error.detail)
        else:
            if removed:
                log.info("data_removed", count=removed)
        await anyio.sleep(pause.total_seconds())
