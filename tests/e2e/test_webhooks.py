"""Webhooks between real processes: what receivers get, when, and how often. B062, B064, B065, B066."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import standardwebhooks
from replicate.webhook import Webhooks, WebhookSigningSecret

from protos.tailrace.v1.prediction_service_pb2 import ListWebhookDeliveriesRequest
from tests.support.pair import MODEL, Pair, numbered, running_pair, script
from tests.support.webhook_receiver import Received, Receiver, receiving, status

pytestmark = pytest.mark.anyio

LOOPBACK = {"webhook_allow_http": "1", "webhook_allow_private": "1"}


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async with running_pair(tmp_path_factory.mktemp("pair"), LOOPBACK) as running:
        yield running


async def create(pair: Pair, prompt: str, **fields: object) -> dict:
    body = {"input": {"prompt": prompt, "max_tokens": 100_000}, **fields}
    answer = await pair.http.post(f"{pair.edge.url}/v1/models/{MODEL}/predictions", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def key(pair: Pair) -> str:
    answer = await pair.http.get(f"{pair.edge.url}/v1/webhooks/default/secret")
    assert answer.status_code == 200
    return answer.json()["key"]


async def test_37_start_and_completed_are_two_calls_and_the_second_equals_get(pair: Pair) -> None:
    async with receiving() as receiver:
        prompt, text = numbered(20, delay_ms=2)
        made = await create(pair, prompt, webhook=receiver.url, webhook_events_filter=["start", "completed"])
        start, completed = await receiver.until(2)
        answer = await pair.http.get(made["urls"]["get"])
        await pair.api.ended(made)
    assert (start.event, start.body["status"], start.body["output"]) == ("start", "processing", None)
    assert (completed.event, completed.body["status"]) == ("completed", "succeeded")
    assert completed.raw == answer.content and "".join(completed.body["output"]) == text
    assert made["webhook"] == completed.body["webhook"] == receiver.url
    assert completed.body["webhook_events_filter"] == ["start", "completed"]
    assert completed.target == "/hook?a=b"
    assert len(receiver.received) == 2
