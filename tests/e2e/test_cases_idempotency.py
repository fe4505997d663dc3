"""Creates that are repeated: one prediction, the same answer. Cases B072, B073 and check 43."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import anyio.to_thread
import httpx
import pytest

from protos.tailrace.v1.prediction_service_pb2 import ListPredictionsRequest
from tests.support.cutting_proxy import cutting_proxy
from tests.support.pair import LIMIT_S, MODEL, Pair, numbered, running_pair, script

PATH = f"/v1/models/{MODEL}/predictions"


async def ids(pair: Pair) -> set[str]:
    """Return the ids of the latest predictions, more than one test makes."""
    return {
        p.id for p in (await pair.stubs.predictions.ListPredictions(ListPredictionsRequest())).predictions
    }


async def made_by(pair: Pair, act: Callable[[], Awaitable[object]]) -> set[str]:
    """Return the ids of what `act` made."""
    before = await ids(pair)
    await act()
    return await ids(pair) - before


def body(prompt: str) -> dict[str, Any]:
    return {"version": MODEL, "input": {"prompt": prompt}}


@pytest.mark.parametrize("way", ["put", "key", "put and key"])
async def test_b072_twenty_at_once_make_one_prediction(pair: Pair, way: str) -> None:
    name = f"b072-{uuid4()}"
    prompt, text = numbered(5, delay_ms=5)
    answers: list[httpx.Response] = []
    headers = {"Idempotency-Key": name} if "key" in way else {}

    async def ask(given: str = prompt) -> httpx.Response:
        if "put" in way:
            url = f"{pair.edge.url}/v1/predictions/{name}"
            return await pair.http.put(url, json=body(given), headers=headers)
        return await pair.http.post(f"{pair.edge.url}/v1/predictions", json=body(given), headers=headers)

    async def note() -> None:
        answers.append(await ask())

    async def all_at_once() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(note)

    with anyio.fail_after(LIMIT_S):
        (prediction_id,) = await made_by(pair, all_at_once)
        assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
        assert {answer.json()["id"] for answer in answers} == {prediction_id}
        assert {a.headers.get("idempotent-replayed") for a in answers if a.status_code == 200} == {"true"}
        assert all(answer.json()["output"] is None or answer.json()["completed_at"] for answer in answers)
        if "put" in way:
            assert prediction_id == name
        assert "".join((await pair.api.ended(answers[0].json()))["output"]) == text
        again = await ask()
        assert (again.status_code, again.json()["status"]) == (200, "succeeded")
        assert "".join(again.json()["output"]) == text

        async def differ() -> None:
            other = await ask(script(pieces=["other"]))
            assert other.status_code == 409 and other.headers["x-should-retry"] == "false"
            assert other.headers["content-type"] == "application/problem+json"
            assert other.json()["title"] == "Request id conflict"

        assert await made_by(pair, differ) == set()


async def test_a_chosen_id_works_like_any_other(pair: Pair) -> None:
    for name in ("a", "-", "0" * 64, "x" * 26, f"job-{uuid4()}"):
        prompt, text = numbered(3, delay_ms=5)
        made = await pair.http.put(f"{pair.edge.url}/v1/predictions/{name}", json=body(prompt) | {"id": name})
        assert made.status_code == 201 and made.json()["id"] == name
        assert made.headers["location"].endswith(f"/v1/predictions/{name}")
        assert (await pair.api.read(made.json())).text == text
        assert "".join((await pair.api.get(made.json()))["output"]) == text
        assert (await pair.api.cancel(made.json())).json()["status"] == "succeeded"
    assert f"x.{'a' * 26}" not in pair.edge.log


async def test_a_chosen_id_that_cannot_be_is_a_422(pair: Pair) -> None:
    async def act() -> None:
        for name in ("UPPER", "a" * 65, "under_score", "dot.dot", "a%20b", "%C3%A9"):
            answer = await pair.http.put(f"{pair.edge.url}/v1/predictions/{name}", json=body("x"))
            assert answer.status_code == 422
            assert answer.json()["invalid_fields"][0]["field"] == "prediction_id"
        for wrong in ("other", "", 5):
            answer = await pair.http.put(f"{pair.edge.url}/v1/predictions/me", json=body("x") | {"id": wrong})
            assert (answer.status_code, answer.json()["invalid_fields"][0]["field"]) == (422, "id")

    assert await made_by(pair, act) == set()


@pytest.mark.parametrize("key", ["", "a" * 256])
async def test_a_key_that_cannot_be_is_a_422(pair: Pair, key: str) -> None:
    answer = await pair.api.post({"prompt": "x"}, {"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["invalid_fields"][0]["field"]) == (422, "Idempotency-Key")
    twice = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    assert (await pair.http.post(pair.edge.url + PATH, json={}, headers=twice)).status_code == 422


async def test_what_was_refused_may_be_asked_again_with_the_key(pair: Pair) -> None:
    headers = {"Idempotency-Key": str(uuid4())}
    assert (await pair.api.post({"temperature": 9}, headers)).status_code == 422
    answers = [await pair.api.post({"prompt": script(pieces=["a"])}, headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]


async def test_the_answer_is_the_same_in_every_way_of_waiting(pair: Pair) -> None:
    key, prompt = {"Idempotency-Key": str(uuid4())}, script(pieces=["a "], delay_ms=1300)
    first = await pair.api.post({"prompt": prompt}, key | {"Prefer": "wait=1"})
    held = await pair.api.post({"prompt": prompt}, key | {"Prefer": "wait=5"})
    assert (first.status_code, first.json()["status"]) == (202, "starting")
    assert (held.status_code, held.json()["output"]) == (200, ["a "])
    assert first.json()["id"] == held.json()["id"]


async def test_b073_a_reply_that_got_lost_is_repeated(pair: Pair) -> None:
    headers = {"Idempotency-Key": str(uuid4())}
    found: list[httpx.Response] = []

    async def act() -> None:
        async with (
            cutting_proxy(pair.edge.port, cuts=3) as proxy,
            httpx.AsyncClient(trust_env=False) as client,
        ):
            while not found:
                try:
                    found.append(
                        await client.post(proxy.url + PATH, json={"input": {"prompt": "x"}}, headers=headers)
                    )
                except httpx.TransportError:
                    continue
        assert proxy.requests == 4

    with anyio.fail_after(LIMIT_S):
        assert await made_by(pair, act) == {found[0].json()["id"]}
    assert found[0].status_code in (200, 201) and found[0].json()["input"] == {"prompt": "x"}


async def test_43_a_connection_cut_after_the_body_makes_one_prediction(pair: Pair) -> None:
    key, content = str(uuid4()), json.dumps(body("x")).encode()
    head = f"POST /v1/predictions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
    request = f"{head}Idempotency-Key: {key}\r\n\r\n".encode() + content

    def cut() -> None:
        for _ in range(6):
            with socket.create_connection(("127.0.0.1", pair.edge.port)) as connection:
                connection.sendall(request)

    async def act() -> None:
        await anyio.to_thread.run_sync(cut)
        url = f"{pair.edge.url}/v1/predictions"
        answers.append(await pair.http.post(url, json=body("x"), headers={"Idempotency-Key": key}))

    answers: list[httpx.Response] = []
    assert len(await made_by(pair, act)) == 1
    assert answers[0].status_code in (200, 201)  # a cut that came before the body was read makes none


async def test_43_without_a_key_there_are_two(pair: Pair) -> None:
    async def act() -> None:
        for _ in range(2):
            await pair.api.create(script(pieces=["a"]))

    assert len(await made_by(pair, act)) == 2


async def test_a_repeat_is_answered_when_nothing_new_is_taken(tmp_path: Path) -> None:
    endless = script(pieces=["a "], repeat=10_000, delay_ms=20)
    service = {"engine_slots": "1", "queue_limit": "0"}
    with anyio.fail_after(60):
        async with running_pair(tmp_path, service, {"hold_after_done": "0"}) as pair:
            key = {"Idempotency-Key": "k"}
            first = await pair.api.post({"prompt": endless}, key)
            while (await pair.api.get(first.json()))["status"] != "processing":
                await anyio.sleep(0.02)
            assert (await pair.api.post({"prompt": endless})).status_code == 429
            again = await pair.api.post({"prompt": endless}, key)
            assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
            assert (await pair.api.post({"prompt": "other"}, key)).status_code == 429
            await pair.service.kill()
            await pair.service.start()
            await pair.service.ready()
            again = await pair.api.post({"prompt": endless}, key)
            assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
            await pair.api.cancel(again.json())
