"""Tokens, scopes, limits and web pages at the edge: the real edge on real sockets, a scripted service."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.datastructures import Headers

from edge.auth.demands import Demand, Rate
from edge.auth.gate import Gate, presented_token
from edge.auth.grants import GrantsError, Limits, Scope
from edge.auth.token_file import GrantFile, read_grants
from edge.auth.usage import DefaultLimits
from edge.auth.web_callers import WebCallers
from edge.http.problem_responses import problem_response
from edge.protocol.problems import Problem
from edge.replicate.endpoints import ENDPOINTS, PATH_PARAMETERS
from edge.replicate.routing import PREFIXES
from edge.upstream.metadata import Caller
from tests.support.edge_server import RunningEdge, edge_settings, run_edge
from tests.support.fake_service import MODEL, FakeService, serve_fake
from tests.support.tokens import TokenFile, bearer

LIMIT_S = 20
BODY = {"version": MODEL, "input": {"prompt": "x"}}
UNAUTHENTICATED = {
    "title": "Unauthenticated",
    "detail": "You did not pass a valid authentication token",
    "status": 401,
}


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path)


@asynccontextmanager
async def edge_on(
    service: FakeService, tokens: TokenFile | None = None, **changes: object
) -> AsyncIterator[RunningEdge]:
    if tokens is not None:
        changes["tokens_file"] = str(tokens.path)
    with anyio.fail_after(LIMIT_S):
        async with serve_fake(service), run_edge(edge_settings(service.address, **changes)) as edge:
            yield edge


def routes() -> list[tuple[str, str]]:
    """Return method and path of every route of the API, with something in each parameter."""
    filled = {"prediction_id": "a" * 26, "token": "t" * 52}
    return [
        (endpoint.method, prefix + endpoint.path.format_map(dict.fromkeys(PATH_PARAMETERS, "x") | filled))
        for prefix in PREFIXES
        for endpoint in ENDPOINTS
    ]


async def test_every_route_but_streams_and_probes_wants_a_token(tokens: TokenFile) -> None:
    tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        asked = [(m, p) for m, p in [*routes(), ("GET", "/nothing"), ("POST", "/")] if "/streams/" not in p]
        for method, path in asked:
            answer = await edge.client.request(method, path, json=BODY)
            if path == "/":
                continue
            body = answer.json()
            if path.startswith("/v1/models"):  # OpenAI's clients ask there, too
                assert body.pop("error")["code"] == "invalid_api_key"
            assert (answer.status_code, body) == (401, UNAUTHENTICATED), (method, path)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["www-authenticate"] == 'Bearer realm="tailrace"'
        assert not service.calls
        for path in ("/healthz", "/readyz"):
            assert (await edge.client.get(path)).status_code == 200
        assert (await edge.client.get("/v1/streams/" + "t" * 52)).status_code == 404


async def test_a_good_token_is_taken_in_both_schemes(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        for value in (f"Bearer {token}", f"Token {token}", f"bearer  {token}", f"TOKEN {token}"):
            answer = await edge.client.post("/v1/predictions", json=BODY, headers={"authorization": value})
            assert answer.status_code == 201
        assert {request.owner for request in service.requests("CreatePrediction")} == {"ann"}  # type: ignore[attr-defined]


async def test_anything_else_is_none(tokens: TokenFile) -> None:
    token, gone = tokens.make("ann"), tokens.make("ann")
    late = tokens.make("ann", expires_in=timedelta(0))
    tokens.revoke(gone)
    wrong = token[:20] + ("A" if token[20] != "A" else "B") + token[21:]
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        for value in (
            *("", "Bearer", token, f"Basic {token}", f"Bearer {token}x", f"Bearer x {token}"),
            *(f"Bearer {gone}", f"Bearer {late}", f"Bearer {wrong}", "Bearer " + "é" * 9),
        ):
            raw = [(b"authorization", value.encode())]
            answer = await edge.client.post("/v1/predictions", json=BODY, headers=raw)
            assert (answer.status_code, answer.json()) == (401, UNAUTHENTICATED), value
        twice = [("authorization", f"Bearer {token}")] * 2
        assert (await edge.client.get("/v1/predictions/x", headers=twice)).status_code == 401
        for name in ("x-api-key", "cookie"):
            assert (await edge.client.get("/v1/predictions/x", headers={name: token})).status_code == 401
        assert (await edge.client.get(f"/v1/predictions/x?token={token}")).status_code == 401
        assert not service.calls


async def test_a_token_is_revoked_and_made_without_a_restart(tokens: TokenFile) -> None:
    first, second = tokens.make("ann"), tokens.make("bob")
    async with edge_on(FakeService(), tokens) as edge:

        async def until(token: str, status: int) -> None:
            while (await edge.client.get("/v1/predictions/x", headers=bearer(token))).status_code != status:
                await anyio.sleep(0.02)

        await until(first, 404)
        tokens.revoke(first)
        await until(first, 401)
        await until(second, 404)
        await until(tokens.make("cid"), 404)
        good = tokens.path.read_text()
        tokens.path.write_text("{ an editor's slip")
        await until_logged(edge, "tokens_file_unreadable", second)
        await until(second, 404)
        tokens.path.unlink()
        await until(second, 401)
        tokens.path.write_text(good)
        tokens.path.chmod(0o600)
        await until(second, 404)
        assert not any(
            part in json.dumps(edge.log) for token in (first, second) for part in token.split("_")[2:]
        )


async def until_logged(edge: RunningEdge, event: str, token: str) -> None:
    while not any(line["event"] == event for line in edge.log):
        await edge.client.get("/v1/predictions/x", headers=bearer(token))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_can_read_is_refused(tokens: TokenFile, mode: int) -> None:
    tokens.make("ann")
    tokens.path.chmod(mode)
    with pytest.raises(GrantsError, match="chmod"):
        read_grants(tokens.path)


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [(Scope.CREATE, {"create", "put"}), (Scope.READ, {"get"}), (Scope.CANCEL, {"cancel"}),
     (Scope.ADMIN, {"create", "put", "get", "cancel"})],
)  # fmt: skip
async def test_a_token_may_do_what_its_scopes_say(tokens: TokenFile, scope: Scope, allowed: set[str]) -> None:
    token, whole = tokens.make("ann", scope), tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        made = (await edge.client.post("/v1/predictions", json=BODY, headers=bearer(whole))).json()
        calls = {
            "create": ("POST", "/v1/predictions"),
            "put": ("PUT", "/v1/predictions/mine"),
            "get": ("GET", made["urls"]["get"]),
            "cancel": ("POST", made["urls"]["cancel"]),
        }
        for name, (method, url) in calls.items():
            before = len(service.calls)
            answer = await edge.client.request(method, url, json=BODY, headers=bearer(token))
            if name in allowed:
                assert answer.status_code in (200, 201), name
            else:
                assert (answer.status_code, answer.json()["title"]) == (403, "Forbidden")
                assert "scope predictions:" in answer.json()["detail"]
                assert len(service.calls) == before


async def test_an_admin_sees_all_and_creates_as_itself(tokens: TokenFile) -> None:
    ann, bob, root = tokens.make("ann"), tokens.make("bob"), tokens.make("root", Scope.ADMIN)
    async with edge_on(FakeService(), tokens) as edge:
        made = (await edge.client.post("/v1/predictions", json=BODY, headers=bearer(ann))).json()
        assert (await edge.client.get(made["urls"]["get"], headers=bearer(root))).status_code == 200
        own = (await edge.client.post("/v1/predictions", json=BODY, headers=bearer(root))).json()
        for token in (ann, bob):
            assert (await edge.client.get(own["urls"]["get"], headers=bearer(token))).status_code == 404
        assert (await edge.client.post(made["urls"]["cancel"], headers=bearer(bob))).status_code == 404
        assert (await edge.client.post(made["urls"]["cancel"], headers=bearer(root))).status_code == 200


async def test_a_stream_needs_its_url_alone(tokens: TokenFile) -> None:
    """Check 19, with raw requests, and case B092."""
    ann, bob = tokens.make("ann"), tokens.make("bob")
    async with edge_on(FakeService(texts=["a", "b"]), tokens) as edge:
        made = (await edge.client.post("/v1/predictions", json=BODY, headers=bearer(ann))).json()
        url = made["urls"]["stream"]
        for headers in ({}, bearer(ann), bearer(bob), bearer("nonsense")):
            answer = await edge.client.get(url, headers=headers)
            assert answer.status_code == 200 and b"event: done" in answer.content
        for changed in (url[:-1] + ("a" if url[-1] != "a" else "b"), url + "a", url[:-1]):
            assert (await edge.client.get(changed)).status_code == 404
        lines = [line for line in edge.log if str(line.get("path", "")).startswith("/v1/streams/")]
        assert {line["path"] for line in lines} == {"/v1/streams/-"}
        assert lines[0]["prediction_id"] == made["id"] and url.rsplit("/", 1)[1] not in json.dumps(edge.log)


async def test_the_log_names_the_token_by_its_id(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    async with edge_on(FakeService(), tokens) as edge:
        await edge.client.get("/v1/predictions/x", headers=bearer(token))
        await edge.client.get("/v1/predictions/x", headers=bearer("tr_wrong"))
        first, second = (line for line in edge.log if line["event"] == "http_request")
        assert first["token_id"] == tokens.ids[token] and "token_id" not in second


async def test_creates_above_the_rate_are_throttled_and_create_nothing(tokens: TokenFile) -> None:
    token, other = tokens.make("ann", limits=Limits(creates_per_minute=3)), tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge:
        answers = [
            await edge.client.post("/v1/predictions", json=BODY, headers=bearer(token)) for _ in range(5)
        ]
        assert [answer.status_code for answer in answers] == [201, 201, 201, 429, 429]
        assert [answer.headers["ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]
        assert (
            answers[0].headers["ratelimit-reset"] == "20" and int(answers[2].headers["ratelimit-reset"]) <= 60
        )
        refused = answers[3]
        seconds = refused.headers["retry-after"]
        assert 1 <= int(seconds) <= 20
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json() == {
            "title": "Too many requests",
            "detail": f"Request was throttled. Expected available in {seconds} seconds.",
            "status": 429,
            "retry_after": int(seconds),
        }
        assert len(service.predictions) == 3
        for path in ("/v1/predictions/x", "/nothing"):
            assert (await edge.client.get(path, headers=bearer(token))).status_code == 404
        put = await edge.client.put("/v1/predictions/x", json=BODY, headers=bearer(token))
        assert put.status_code == 429
        assert (
            await edge.client.post("/v1/predictions", json=BODY, headers=bearer(other))
        ).status_code == 201


async def test_other_requests_have_a_rate_of_their_own(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    async with edge_on(
        FakeService(), tokens, token_requests_per_minute=2, token_creates_per_minute=1
    ) as edge:
        seen = [
            (await edge.client.get("/v1/predictions/x", headers=bearer(token))).status_code for _ in "abc"
        ]
        assert seen == [404, 404, 429]
        made = await edge.client.post("/v1/predictions", json=BODY, headers=bearer(token))
        assert made.status_code == 201
        assert (
            await edge.client.post(made.json()["urls"]["cancel"], headers=bearer(token))
        ).status_code == 429
        assert (await edge.client.get(made.json()["urls"]["stream"] + "x")).status_code == 404
        assert (await edge.client.get("/healthz", headers=bearer(token))).status_code == 200


async def test_a_throttled_body_is_not_read_and_the_connection_stays(tokens: TokenFile) -> None:
    token = tokens.make("ann", limits=Limits(creates_per_minute=1))
    body = {"version": MODEL, "input": {"prompt": "x" * 900_000}}
    async with edge_on(FakeService(), tokens) as edge:
        async with httpx.AsyncClient(
            base_url=edge.url, limits=httpx.Limits(max_connections=1), trust_env=False
        ) as client:
            statuses = [
                (await client.post("/v1/predictions", json=body, headers=bearer(token))).status_code
                for _ in range(6)
            ]
        assert statuses == [201] + [429] * 5


async def test_requests_open_at_once_are_limited_waits_included(tokens: TokenFile) -> None:
    token, other = tokens.make("ann", limits=Limits(concurrency=2)), tokens.make("ann")
    service = FakeService()
    async with edge_on(service, tokens) as edge, anyio.create_task_group() as group:
        answers: list[httpx.Response] = []

        async def wait() -> None:
            headers = bearer(token, prefer="wait=10")
            answers.append(await edge.client.post("/v1/predictions", json=BODY, headers=headers))

        group.start_soon(wait)
        group.start_soon(wait)
        while len(service.requests("GetPrediction")) < 2:
            await anyio.lowlevel.checkpoint()
        refused = await edge.client.get("/v1/predictions/x", headers=bearer(token))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["detail"] == "Request was throttled. At most 2 may be open at a time."
        assert (await edge.client.get("/v1/predictions/x", headers=bearer(other))).status_code == 404
        for prediction in service.predictions.values():
            prediction.finish()
        while len(answers) < 2:
            await anyio.lowlevel.checkpoint()
        assert (await edge.client.get("/v1/predictions/x", headers=bearer(token))).status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "169.254.169.254", "evil.example:80"]
)
async def test_without_tokens_a_rebound_name_is_refused(host: str) -> None:
    service = FakeService()
    async with edge_on(service) as edge:
        for method, path in (("POST", "/v1/predictions"), ("GET", "/"), ("OPTIONS", "/v1/predictions")):
            answer = await edge.client.request(method, path, json=BODY, headers={"host": host})
            assert (answer.status_code, answer.json()["title"]) == (403, "Host not allowed")
        assert not service.calls


async def test_without_tokens_our_own_names_are_taken() -> None:
    async with edge_on(
        FakeService(), public_url="https://llm.example:8443/x", allowed_hosts=("box",)
    ) as edge:
        for host in ("127.0.0.1", "localhost:99", "[::1]:8080", "llm.example", "LLM.example:8443", "box:1"):
            assert (await edge.client.get("/healthz", headers={"host": host})).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example"])
async def test_without_tokens_a_foreign_page_starts_nothing(origin: str) -> None:
    service = FakeService(texts=["a"])
    async with edge_on(service, cors_origins=("https://app.example",)) as edge:
        simple = {"origin": origin, "content-type": "text/plain"}
        answer = await edge.client.post("/v1/predictions", json=BODY, headers=simple)
        assert (answer.status_code, answer.json()["title"]) == (403, "Origin not allowed")
        assert not service.calls
        for own in ("https://app.example", edge.url, "http://localhost:3000"):
            answer = await edge.client.post("/v1/predictions", json=BODY, headers={"origin": own})
            assert answer.status_code == 201
        assert (
            await edge.client.get(answer.json()["urls"]["stream"], headers={"origin": origin})
        ).status_code == 200


async def test_with_tokens_any_name_and_page_may_ask_with_one(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    async with edge_on(FakeService(), tokens) as edge:
        headers = bearer(token, host="llm.example", origin="https://elsewhere.example")
        answer = await edge.client.post("/v1/predictions", json=BODY, headers=headers)
        assert answer.status_code == 201 and "access-control-allow-origin" not in answer.headers


async def test_pages_of_allowed_origins_read_answers_and_refusals(tokens: TokenFile) -> None:
    """Cases B093 and B094, without a browser."""
    token, slow = tokens.make("ann"), tokens.make("ann", limits=Limits(creates_per_minute=1))
    app = {"origin": "https://app.example"}
    async with edge_on(FakeService(), tokens, cors_origins=("https://app.example",)) as edge:
        asked = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,prefer",
        }
        for path in ("/v1/predictions", "/v1/predictions/x", "/v1/predictions/x/cancel", "/v1/streams/x"):
            answer = await edge.client.options(path, headers=app | asked)
            assert answer.status_code == 204
            assert {"authorization", "prefer", "x-api-key", "last-event-id"} <= set(
                answer.headers["access-control-allow-headers"].split(", ")
            )
        create = edge.client.post
        answers = [
            await create("/v1/predictions", json=BODY, headers=app | bearer(token)),
            await create("/v1/predictions", json=BODY, headers=app),
            await create("/v1/predictions", json=BODY, headers=app | bearer(slow)),
            await create("/v1/predictions", json=BODY, headers=app | bearer(slow)),
            await create("/v1/predictions", json={}, headers=app | bearer(token)),
            await create("/v1/predictions", content=b"{", headers=app | bearer(token)),
            await edge.client.get("/v1/predictions/x", headers=app | bearer(token)),
        ]
        assert [answer.status_code for answer in answers] == [201, 401, 201, 429, 422, 400, 404]
        for answer in answers:
            assert answer.headers.get_list("access-control-allow-origin") == ["https://app.example"]
            assert "Origin" in answer.headers["vary"]
            exposed = answer.headers["access-control-expose-headers"]
            assert {"x-request-id", "retry-after", "location", "preference-applied"} <= set(
                exposed.split(", ")
            )
            assert "access-control-allow-credentials" not in answer.headers
        other = await create(
            "/v1/predictions", json=BODY, headers=bearer(token, origin="https://evil.example")
        )
        assert other.status_code == 201 and "access-control-allow-origin" not in other.headers


def test_a_dialect_may_name_a_header_that_holds_the_token_bare() -> None:
    def found(*lines: tuple[str, str]) -> str | None:
        raw = [(name.encode(), value.encode()) for name, value in lines]
        return presented_token(Headers(raw=raw), ("x-api-key",))

    assert found(("x-api-key", " tok ")) == "tok"
    assert found(("x-api-key", "tok"), ("authorization", "Bearer other")) == "other"
    assert found(("x-api-key", "tok"), ("authorization", "Basic x")) is None
    assert found(("x-api-key", "a"), ("x-api-key", "b")) is None
    assert found(("x-api-key", "")) is None and found() is None


async def test_a_dialect_may_refuse_in_its_own_shape(tokens: TokenFile) -> None:
    token = tokens.make("ann")
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["caller"])

    async def send(message: Any) -> None:
        seen.append(message)

    def refuse(problem: Problem, headers: Any) -> Any:
        return problem_response(Problem("mine", problem.status, problem.detail), headers)

    demand = Demand(Scope.READ, Rate.OTHERS, ("x-api-key",), refuse)
    grants = GrantFile(tokens.path, None)  # type: ignore[arg-type]  # nothing is logged here
    gate = Gate(app, grants, WebCallers(), DefaultLimits(), demands=lambda method, path: demand)
    for key in (token, "wrong"):
        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"x-api-key", key.encode())]}
        await gate(scope | {"state": {"caller": Caller()}}, None, send)  # type: ignore[arg-type]
    assert seen[0].owner == "ann"
    assert seen[1]["status"] == 401 and json.loads(seen[2]["body"])["title"] == "mine"
