"""Replicate's Python client: versions, lists, deployments, long waits. Numbers are the contract's checks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import replicate

from tests.conformance.replicate.python.wire import Wire, in_thread
from tests.support.pair import MODEL, Pair, numbered, script


async def test_06_run_of_a_version_iterates_over_all_tokens(
    pair: Pair, py1: replicate.Client, wire: Wire
) -> None:
    prompt, text = numbered(12, delay_ms=120)
    version = (await in_thread(py1.models.get, MODEL)).latest_version
    assert version is not None and len(version.id) == 64

    def act(**options: Any) -> str:
        output = py1.run(f"{MODEL}:{version.id}", input={"prompt": prompt}, **options)
        assert isinstance(output, Iterator)
        return "".join(output)

    for options in ({"wait": 1}, {"wait": False}):
        assert await in_thread(act, **options) == text
    (*_, found) = wire.calls("GET", f"/versions/{version.id}")
    assert found.status_code == 200
    assert wire.calls("POST", "/v1/predictions")[0].status_code == 202


async def test_08_a_wait_shorter_than_the_run_is_answered_before_the_client_gives_up(
    pair: Pair, py1: replicate.Client
) -> None:
    # The client gives up half a second after what it asks us to hold: at 60 s, and here at 2 s.
    endless = script(pieces=["a "], repeat=10_000, delay_ms=50)
    began_s = time.monotonic()
    made = await in_thread(py1.models.predictions.create, MODEL, input={"prompt": endless}, wait=2)
    assert time.monotonic() - began_s < 2.4
    assert (made.status, made.output) == ("starting", None)
    assert (await in_thread(py1.predictions.cancel, made.id)).status == "canceled"


async def test_33_a_list_of_250_is_read_in_pages_without_loss(
    pair: Pair, py1: replicate.Client, wire: Wire
) -> None:
    ids = await pair.api.create_many(250)

    def act() -> list[list[str]]:
        pages = [py1.predictions.list()]
        while pages[-1].next is not None:
            pages.append(py1.predictions.list(cursor=pages[-1].next))
        return [[prediction.id for prediction in page] for page in pages]

    pages = await in_thread(act)
    assert [len(page) for page in pages[:2]] == [100, 100] and 0 < len(pages[-1]) <= 100
    found = [found for page in pages for found in page]
    assert found[:250] == ids and len(set(found)) == len(found)
    for answer in wire.calls("GET", "/v1/predictions"):
        page = answer.json()
        assert page["previous"] is None
        assert page["next"] is None or page["next"].startswith(f"{pair.edge.url}/v1/predictions?")


async def test_40_deployments_models_account_and_hardware(
    pair: Pair, py1: replicate.Client, wire: Wire
) -> None:
    prompt, text = numbered(4)

    def act() -> None:
        made = py1.deployments.predictions.create("acme/chat", input={"prompt": prompt}, wait=5)
        assert made.status == "succeeded" and "".join(made.output) == text
        assert wire.answers[-1].json()["deployment"] == "acme/chat"
        assert made.input == {"prompt": prompt, "temperature": 0.5, "max_tokens": 512}
        model = py1.models.get(MODEL)
        assert f"{model.owner}/{model.name}" == MODEL and model.latest_version is not None
        assert [version.id for version in model.versions.list()] == [model.latest_version.id]
        deployment = py1.deployments.get("acme/chat")
        assert deployment.current_release is not None
        assert deployment.current_release.version == model.latest_version.id
        assert [found.name for found in py1.deployments.list()] == ["chat"]
        assert py1.accounts.current().username == "local"
        assert [found.sku for found in py1.hardware.list()] == ["local"]
        assert [found.name for found in py1.models.list()] == [model.name]
        assert [found.name for found in py1.models.search(model.name)] == [model.name]
        assert list(py1.collections.list()) == [] and list(py1.trainings.list()) == []

    await in_thread(act)
    assert all(answer.status_code in (200, 201) for answer in wire.answers)
