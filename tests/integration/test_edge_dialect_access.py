"""Tokens, owners and limits on the OpenAI and Anthropic routes: the real edge, a scripted service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import httpx
import pytest

from edge.auth.demands import demand_of
from edge.auth.grants import Limits, Scope
from edge.problem_shapes import demand_of_any
from protos.tailrace.v1 import prediction_service_pb2
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakeService, Fault, serve_fake
from tests.support.tokens import TokenFile, bearer

LIMIT_S = 20
DETAIL = "You did not pass a valid authentication token"
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "x"}],
    "max_tokens": 50,
}
PROMPT: dict[str, Any] = {"model": MODEL, "prompt": "x"}
OPENAI = [
    *(("POST", prefix + path) for prefix in ("/v1", "/openai/v1")
      for path in ("/chat/completions", "/completions", "/responses")),
    ("POST", "/generate"),
    ("GET", "/v1/chat/completions/x/stream"),
    ("GET", "/openai/v1/models"),
    ("GET", "/openai/v1/models/a/b"),
    ("GET", "/openai/nothing"),
]  # fmt: skip
MESSAGES = [("POST", "/messages"), ("POST", "/messages/count_tokens"), ("GET", "/messages/x/stream")]
ANTHROPIC = [
    *((m, prefix + path) for prefix in ("/v1", "/anthropic/v1", "/anthropic") for m, path in MESSAGES),
    ("GET", "/anthropic/v1/models"),
    ("GET", "/anthropic/v1/models/a/b"),
    ("GET", "/anthropic/nothing"),
]
SHARED = ["/v1/models", "/v1/models/nope", f"/v1/models/{MODEL}"]
VERSION = {"anthropic-version": "2023-06-01"}


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path)


@asynccontextmanager
async def edge_on(service: FakeService, tokens: TokenFile, **changes: object) -> AsyncIterator[RunningEdge]:
    changes["tokens_file"] = str(tokens.path)
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


def check_openai(answer: httpx.Response, status: int, kind: str, code: str) -> None:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (kind, code, None)


def check_anthropic(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)


def check_both(answer: httpx.Response, status: int, title: str, kind: str, code: str) -> None:
    """Check the body of the shared paths: Replicate's members and OpenAI's, and none of Anthropic's."""
    check_openai(answer, status, kind, code)
    body = answer.json()
    assert (body["title"], body["status"]) == (title, status) and "type" not in body
    assert body["detail"] == body["error"]["message"]
    assert answer.headers["content-type"] == "application/problem+json"


async def test_every_route_wants_a_token_and_says_so_in_its_shape(tokens: TokenFile) -> None:
    tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        for given in ({}, bearer("sk-nothing"), {"x-api-key": "sk-nothing"}):
            for method, path in OPENAI:
                answer = await edge.client.request(method, path, json=CHAT, headers=given)
                check_openai(answer, 401, "authentication_error", "invalid_api_key")
            for method, path in ANTHROPIC:
                answer = await edge.client.request(method, path, json=CHAT, headers=given)
                check_anthropic(answer, 401, "authentication_error")
                assert answer.json()["error"]["message"] == DETAIL
                assert answer.headers["www-authenticate"].startswith('Bearer realm="tailrace"')
            for path in SHARED:
                check_anthropic(
                    await edge.client.get(path, headers={**given, **VERSION}), 401, "authentication_error"
                )
                plain = await edge.client.get(path, headers=given)
                check_both(plain, 401, "Unauthenticated", "authentication_error", "invalid_api_key")
                assert plain.json()["detail"] == plain.json()["error"]["message"] == DETAIL
        assert not service.calls


async def test_a_bare_key_is_taken_on_anthropics_routes_only(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    async with edge_on(FakeService(texts=["a"]), tokens) as edge:
        key = {"x-api-key": token}
        for path in ("/v1/messages", "/anthropic/v1/messages", "/anthropic/messages"):
            assert (await edge.client.post(path, json=CHAT, headers=bearer(token))).status_code != 401
            assert (await edge.client.post(path, json=CHAT, headers=key)).status_code != 401
        for path in ("/v1/models", f"/v1/models/{MODEL}", "/anthropic/v1/models"):
            assert (await edge.client.get(path, headers=key)).status_code == 200
        for path in ("/v1/chat/completions", "/openai/v1/responses", "/generate"):
            answer = await edge.client.post(path, json=CHAT, headers=key)
            check_openai(answer, 401, "authentication_error", "invalid_api_key")


async def test_a_missing_scope_and_a_limit_have_their_apis_shape(tokens: TokenFile) -> None:
    reader = tokens.make("ann", Scope.READ)
    spent = tokens.make("ann", limits=Limits(creates_per_minute=1))
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        answer = await edge.client.post("/v1/chat/completions", json=CHAT, headers=bearer(reader))
        check_openai(answer, 403, "permission_error", "forbidden")
        answer = await edge.client.post("/v1/messages", json=CHAT, headers={"x-api-key": reader})
        check_anthropic(answer, 403, "permission_error")
        assert not service.calls
        await edge.client.post("/generate", json={}, headers=bearer(spent))
        limited = await edge.client.post("/v1/responses", json=CHAT, headers=bearer(spent))
        check_openai(limited, 429, "rate_limit_error", "rate_limit_exceeded")
        assert int(limited.headers["retry-after"]) > 0
        limited = await edge.client.post("/anthropic/v1/messages", json=CHAT, headers=bearer(spent))
        check_anthropic(limited, 429, "rate_limit_error")
        assert int(limited.headers["retry-after"]) > 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/generate"])
async def test_what_is_made_is_the_owners_also_after_a_break(tokens: TokenFile, path: str) -> None:
    token = tokens.make("ann")
    service = FakeService(texts=["a", "b", "c"])
    service.faults["Predict"].append(Fault(grpc.StatusCode.UNAVAILABLE, after_events=3))
    body = PROMPT if path in ("/v1/completions", "/generate") else CHAT
    async with edge_on(service, tokens) as edge:
        answer = await edge.client.post(path, json={**body, "stream": True}, headers=bearer(token))
        assert answer.status_code == 200, answer.text
    (made,) = service.requests("Predict")
    (mended,) = service.requests("StreamPrediction")
    assert isinstance(made, prediction_service_pb2.PredictRequest) and made.owner == "ann"
    assert isinstance(mended, prediction_service_pb2.StreamPredictionRequest)
    assert (mended.owner, mended.attach) == ("ann", True)


async def test_a_resumable_stream_is_its_owners(tokens: TokenFile) -> None:
    ann, bob = tokens.make("ann"), tokens.make("bob")
    service = FakeService(texts=["a"])
    async with edge_on(service, tokens) as edge:
        for path in ("/v1/chat/completions", "/v1/messages"):
            headers = bearer(ann, **{"x-resumable": "true"})
            first = await edge.client.post(path, json={**CHAT, "stream": True}, headers=headers)
            where = f"{path}/{first.headers['x-request-id']}/stream"
            assert (await edge.client.get(where, headers=bearer(ann))).status_code == 200
            assert (await edge.client.get(where, headers=bearer(bob))).status_code == 404
        owners = {request.owner for request in service.requests("CreatePrediction")}  # type: ignore[attr-defined]
        assert owners == {"ann"}


def test_shapes_change_no_demand() -> None:
    for method, path in [*OPENAI, *ANTHROPIC, *(("GET", path) for path in SHARED), ("GET", "/healthz")]:
        told, plain = demand_of_any(method, path), demand_of(method, path)
        assert (told.scope, told.rate) == (plain.scope, plain.rate)


async def test_refusals_at_the_paths_of_models_are_read_by_all_clients(
    tokens: TokenFile,
) -> None:
    token = tokens.make("ann")
    creator = tokens.make("ann", Scope.CREATE)
    spent = tokens.make("ann", limits=Limits(requests_per_minute=1))
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        for path in SHARED:
            answer = await edge.client.get(path, headers=bearer(creator))
            check_both(answer, 403, "Forbidden", "permission_error", "forbidden")
            answer = await edge.client.delete(path, headers=bearer(token))
            assert answer.status_code in (403, 405)
        admin = bearer(tokens.make("root", Scope.ADMIN))
        for path in SHARED:
            answer = await edge.client.delete(path, headers=admin)
            check_both(answer, 405, "Method not allowed", "invalid_request_error", "method_not_allowed")
        answer = await edge.client.get("/v1/models/a/b/c", headers=bearer(token))
        check_both(answer, 404, "Not found", "invalid_request_error", "not_found")
        await edge.client.get("/v1/models", headers=bearer(spent))
        answer = await edge.client.get("/v1/models", headers=bearer(spent))
        check_both(answer, 429, "Too many requests", "rate_limit_error", "rate_limit_exceeded")
        assert answer.json()["retry_after"] == int(answer.headers["retry-after"])


async def test_what_the_service_refuses_of_models_is_read_by_all_clients(tokens: TokenFile) -> None:
    token = bearer(tokens.make("ann"))
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        for path in ("/v1/models/nope", "/v1/models/acme/nope"):
            error = (await edge.client.get(path, headers=token)).json()
            assert (error["title"], error["status"]) == ("Model not found", 404)
            assert (error["error"]["code"], error["error"]["param"]) == ("model_not_found", "model")
            told = await edge.client.get(path, headers={**token, **VERSION})
            check_anthropic(told, 404, "not_found_error")
            told = await edge.client.get(f"/openai{path}", headers=token)
            assert told.status_code == 404 and set(told.json()) == {"error"}
        cursor = await edge.client.get("/v1/models?cursor=x", headers=token)
        assert (cursor.status_code, cursor.json()["invalid_fields"][0]["field"]) == (422, "cursor")
        assert cursor.json()["error"]["param"] == "cursor"
        told = await edge.client.get("/v1/models?cursor=x", headers={**token, **VERSION})
        check_anthropic(told, 422, "invalid_request_error")
