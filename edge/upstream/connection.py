"""Owns the whole of the edge's connection to one service: one channel and what speaks over it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from edge.upstream.calls import CallPolicy
from edge.upstream.channel import open_channel
from edge.upstream.health import RpcHealth
from edge.upstream.link import open_link
from edge.upstream.models import RpcModels
from edge.upstream.port import UpstreamHealth, UpstreamModels, UpstreamPredictions
from edge.upstream.predictions import RpcPredictions


@dataclass(frozen=True, slots=True)
class Upstream:
    """All ports of the service."""

    predictions: UpstreamPredictions
    models: UpstreamModels
    health: UpstreamHealth


@asynccontextmanager
async def open_upstream(
    address: str, policy: CallPolicy, *, with_link: bool = True
) -> AsyncIterator[Upstream]:
    """Give the service at `address` (`host:port` or `unix:/path`); connects as soon as it is there.

    `with_link`: carry live streams over one call (see `link`), not over one each.
    """
    async with open_channel(address) as channel:
        models, health = RpcModels(channel, policy), RpcHealth(channel)
        if not with_link:
            yield Upstream(RpcPredictions(channel, policy), models, health)
            return
        async with open_link(channel) as link:
            yield Upstream(RpcPredictions(channel, policy, link), models, health)
