"""Refusals at `/v1/models`, which three APIs share: each official client raises its own exception."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from edge.auth.grants import Limits, Scope
from tests.conformance.llm.programs import Program
from tests.support.pair import Pair, running_pair
from tests.support.tokens import TokenFile


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Pair, TokenFile]]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    tokens.make("nobody-asks")
    async with running_pair(folder, edge={"tokens_file": str(tokens.path)}) as pair:
        yield pair, tokens


async def refused(
    program: Program, client: str, pair: Pair, call: str = "", **asked: object
) -> dict[str, Any]:
    report = await program.ask(client, call, pair.edge.url, **asked)
    assert report.error is not None
    return report.error


async def test_openais_client(guarded: tuple[Pair, TokenFile], python: Program) -> None:
    pair, tokens = guarded
    good = tokens.make("ann")
    spent = tokens.make("bob", limits=Limits(requests_per_minute=1))
    await python.ask("openai-models", "get", pair.edge.url, key=spent)
    told = {
        "AuthenticationError": await refused(python, "openai-models", pair),
        "PermissionDeniedError": await refused(
            python, "openai-models", pair, key=tokens.make("ann", Scope.CREATE)
        ),
        "NotFoundError": await refused(python, "openai-models", pair, "get", key=good, model="acme/nope"),
        "RateLimitError": await refused(python, "openai-models", pair, key=spent),
    }
    assert {kind: error["kind"] for kind, error in told.items()} == {kind: kind for kind in told}
    assert {kind: (error["status"], error["body"]["code"]) for kind, error in told.items()} == {
        "AuthenticationError": (401, "invalid_api_key"),
        "PermissionDeniedError": (403, "forbidden"),
        "NotFoundError": (404, "model_not_found"),
        "RateLimitError": (429, "rate_limit_exceeded"),
    }
    assert all(error["body"].keys() == {"message", "type", "param", "code"} for error in told.values())
    assert all(error["body"]["message"] in error["text"] for error in told.values())
    nothing = await refused(python, "openai-models", pair, "get", key=good, model="a/b/c")
    assert (nothing["kind"], nothing["body"]["code"]) == ("NotFoundError", "not_found")


async def test_anthropics_client(guarded: tuple[Pair, TokenFile], python: Program) -> None:
    pair, tokens = guarded
    unknown = await refused(python, "anthropic-models", pair)
    assert (unknown["kind"], unknown["body"]["error"]["type"]) == (
        "AuthenticationError",
        "authentication_error",
    )
    missing = await refused(
        python, "anthropic-models", pair, "get", key=tokens.make("ann"), model="acme/nope"
    )
    assert (missing["kind"], missing["body"]["error"]["type"]) == ("NotFoundError", "not_found_error")
