"""Tokens and tenants as an operator has them: the command, the start, and who sees what."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.routing import Route

from edge.auth.grants import Scope
from edge.auth.token_format import parse_token
from edge.http.lifecycle import Lifecycle
from edge.replicate.routes import ReplicateApi
from protos.tailrace.v1.prediction_service_pb2 import ListPredictionsRequest
from tests.support.pair import LIMIT_S, MODEL, Pair, running_pair, script
from tests.support.processes import ROOT, Edge
from tests.support.tokens import TokenFile, bearer

UNKNOWN = "zzzzzzzzzzzzzzzzzzzzzzzzzz"


@dataclass
class Guarded:
    """A pair that asks for tokens, and three callers of it."""

    pair: Pair
    tokens: TokenFile
    ann: str
    bob: str
    root: str

    async def ask(self, token: str, method: str, path: str, **more: Any) -> httpx.Response:
        """Make one request with a token."""
        headers = bearer(token, **more.pop("headers", {}))
        return await self.pair.http.request(method, self.pair.edge.url + path, headers=headers, **more)

    async def create(self, token: str, prompt: str) -> dict[str, Any]:
        """Create a prediction."""
        body = {"input": {"prompt": prompt}}
        answer = await self.ask(token, "POST", f"/v1/models/{MODEL}/predictions", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    ann, bob, root = tokens.make("ann"), tokens.make("bob"), tokens.make("root", Scope.ADMIN)
    edge = {"tokens_file": str(tokens.path), "hold_after_done": "100ms"}
    async with running_pair(folder, edge=edge) as pair:
        yield Guarded(pair, tokens, ann, bob, root)


def routes() -> list[tuple[str, str]]:
    """Return every route of the API that reads, but streams."""
    found = []
    for route in ReplicateApi(None, None, Lifecycle()).routes():  # type: ignore[arg-type]
        assert isinstance(route, Route) and route.methods is not None
        found += [
            (m, route.path)
            for m in sorted(route.methods - {"HEAD", "OPTIONS"})
            if "{token}" not in route.path
        ]
    return found


OF_ONE = [(m, p) for m, p in routes() if "{prediction_id}" in p and m != "PUT"]
OF_ALL = [(m, p) for m, p in routes() if m == "GET" and "{" not in p]


def same_but_for_the_id(one: httpx.Response, other: httpx.Response, id_: str) -> bool:
    """Return whether two answers differ in nothing that says which id was asked for."""
    skipped = {"date", "x-request-id", "ratelimit-remaining", "ratelimit-reset"}
    told = [
        (r.status_code, r.content.replace(id_.encode(), UNKNOWN.encode()),
         sorted((k, v) for k, v in r.headers.items() if k not in skipped))
        for r in (one, other)
    ]  # fmt: skip
    return told[0] == told[1]


@pytest.mark.parametrize(("method", "path"), OF_ONE, ids=[f"{m} {p}" for m, p in OF_ONE])
async def test_a_foreign_prediction_is_an_unknown_one(guarded: Guarded, method: str, path: str) -> None:
    running = await guarded.create(guarded.ann, script(pieces=["a "], repeat=10_000, delay_ms=20))
    ended = await guarded.create(guarded.ann, script(pieces=["a"]))
    assert (await guarded.pair.api.read(ended)).done == {}
    unknown = await guarded.ask(guarded.bob, method, path.replace("{prediction_id}", UNKNOWN))
    assert unknown.status_code == 404
    for made in (running, ended):
        before = (await guarded.ask(guarded.ann, "GET", f"/v1/predictions/{made['id']}")).json()["status"]
        foreign = await guarded.ask(guarded.bob, method, path.replace("{prediction_id}", made["id"]))
        assert same_but_for_the_id(foreign, unknown, made["id"])
        for token in (guarded.ann, guarded.root):
            own = await guarded.ask(token, "GET", f"/v1/predictions/{made['id']}")
            assert own.status_code == 200
        assert own.json()["status"] in (before, "processing")
    answer = await guarded.ask(guarded.root, "POST", f"/v1/predictions/{running['id']}/cancel")
    assert answer.json()["status"] == "canceled"


@pytest.mark.parametrize(("method", "path"), OF_ALL or [("GET", "/v1/predictions")])
async def test_no_list_shows_what_is_foreign(guarded: Guarded, method: str, path: str) -> None:
    made = await guarded.create(guarded.ann, script(pieces=["a"]))
    assert made["id"] not in (await guarded.ask(guarded.bob, method, path)).text


async def test_the_service_lists_by_owner(guarded: Guarded) -> None:
    made = await guarded.create(guarded.ann, script(pieces=["a"]))
    for owner, shown in (("ann", True), ("bob", False), ("", True)):
        request = ListPredictionsRequest(owner=owner)
        found = (await guarded.pair.stubs.predictions.ListPredictions(request)).predictions
        assert (made["id"] in {p.id for p in found}) == shown
        assert {p.owner for p in found} <= ({owner} if owner else {"ann", "bob", "root"})


async def test_a_foreign_id_cannot_be_taken_and_tells_nothing(guarded: Guarded) -> None:
    body = {"version": MODEL, "input": {"prompt": script(pieces=["a"])}}
    other = {"version": MODEL, "input": {"prompt": script(pieces=["b"])}}
    assert (await guarded.ask(guarded.ann, "PUT", "/v1/predictions/job-1", json=body)).status_code == 201
    assert (await guarded.ask(guarded.ann, "PUT", "/v1/predictions/job-1", json=body)).status_code == 200
    own = await guarded.ask(guarded.ann, "PUT", "/v1/predictions/job-1", json=other)
    foreign = await guarded.ask(guarded.bob, "PUT", "/v1/predictions/job-1", json=body)
    assert own.status_code == foreign.status_code == 409
    assert own.content == foreign.content and "ann" not in foreign.text
    assert (await guarded.ask(guarded.bob, "GET", "/v1/predictions/job-1")).status_code == 404


async def test_keys_are_the_owners_own(guarded: Guarded) -> None:
    body = {"version": MODEL, "input": {"prompt": script(pieces=["a"])}}
    key = {"idempotency-key": "the same"}
    made = [
        await guarded.ask(token, "POST", "/v1/predictions", json=body, headers=key)
        for token in (guarded.ann, guarded.bob, guarded.ann, guarded.bob)
    ]
    assert [answer.status_code for answer in made] == [201, 201, 200, 200]
    assert made[0].json()["id"] == made[2].json()["id"] != made[1].json()["id"] == made[3].json()["id"]


async def test_19_a_stream_url_works_without_a_token(guarded: Guarded) -> None:
    made = await guarded.create(guarded.ann, script(pieces=["a", "b"]))
    reading = await guarded.pair.api.read(made)
    assert (reading.text, reading.done) == ("ab", {})
    with anyio.fail_after(LIMIT_S):
        while made["id"] not in guarded.pair.edge.log:  # the line comes when the stream is over
            await anyio.sleep(0.02)
    log = guarded.pair.edge.log + guarded.pair.service.log
    secrets = [made["urls"]["stream"].rsplit("/", 1)[1], *(t.split("_")[2] for t in guarded.tokens.ids)]
    assert not any(secret in log for secret in secrets)


def command(*arguments: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edge.tokens", "--file", str(file), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "tokens.json"
    made = command("create", "--owner", "ann", "--expires", "90d", "--creates-per-minute", "5", file=file)
    token = parse_token(made.stdout.strip())
    assert made.returncode == 0 and token is not None
    assert token.secret not in made.stderr and str(file) in made.stderr
    assert file.stat().st_mode & 0o777 == 0o600 and token.secret not in file.read_text()
    assert command("create", "--owner", "bob", "--scopes", "predictions:read", file=file).returncode == 0
    shown = command("list", file=file).stdout.splitlines()
    assert [line.split()[1:3] for line in shown] == [
        ["ann", "predictions:create,predictions:read,predictions:cancel"],
        ["bob", "predictions:read"],
    ]
    assert shown[0].startswith(token.id) and token.secret not in shown[0] and shown[0].endswith("good")
    assert command("revoke", token.id, file=file).returncode == 0
    assert command("revoke", token.id, file=file).returncode == 1
    assert len(command("list", file=file).stdout.splitlines()) == 1
    for wrong in (
        ("create", "--owner", "not ok"),
        ("create", "--owner", "ann", "--scopes", "all"),
        ("create", "--owner", "ann", "--expires", "soon"),
    ):
        refused = command(*wrong, file=file)
        assert refused.returncode == 2 and "Traceback" not in refused.stderr and not refused.stdout
    assert len(command("list", file=file).stdout.splitlines()) == 1


def test_tokens_made_at_once_are_all_kept(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    makers = [
        subprocess.Popen(
            [sys.executable, "-m", "edge.tokens", "--file", str(file), "create", "--owner", f"o{n}"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for n in range(4)
    ]  # fmt: skip
    assert [maker.wait(60) for maker in makers] == [0] * 4
    assert len(command("list", file=file).stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"host": "0.0.0.0"}, "EDGE_HOST=0.0.0.0 can be reached from elsewhere, and there are no API tokens"),
        ({"host": "::"}, "there are no API tokens: make one with `make token`"),
        ({"tokens_file": "var/there-is-none.json"}, "make a token with `make token`"),
        ({"cors_origins": "app.example"}, "EDGE_CORS_ORIGINS"),
        ({"allowed_hosts": "https://x"}, "EDGE_ALLOWED_HOSTS"),
    ],
)
async def test_an_unsafe_start_is_refused(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    edge = Edge(tmp_path, "127.0.0.1:1", **settings)
    with anyio.fail_after(LIMIT_S):
        await edge.start()
        assert await edge.wait() == 2
    assert text in edge.log and "Traceback" not in edge.log


async def test_with_tokens_any_address_is_taken(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path)
    tokens.make("ann")
    edge = Edge(tmp_path, "127.0.0.1:1", host="0.0.0.0", tokens_file=str(tokens.path), call_deadline="100ms")
    try:
        with anyio.fail_after(LIMIT_S):
            await edge.start()
            async with httpx.AsyncClient(base_url=edge.url, trust_env=False) as client:
                while True:
                    try:
                        answer = await client.get("/v1/predictions/x", headers={"host": "anything.example"})
                        break
                    except httpx.TransportError:
                        await anyio.sleep(0.05)
                assert answer.status_code == 401
                assert (await client.get("/healthz")).status_code == 200
    finally:
        await edge.close()
