"""Replicate's Python client against an edge with tokens and limits. Numbers: the contract's checks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import replicate
from replicate.exceptions import ReplicateError

from edge.auth.grants import Limits, Scope
from tests.conformance.replicate.python.wire import in_thread
from tests.support.pair import MODEL, Pair, numbered, running_pair, script
from tests.support.tokens import TokenFile


@dataclass
class Guarded:
    """A pair that asks for tokens."""

    pair: Pair
    tokens: TokenFile

    @contextmanager
    def client(self, token: str) -> Iterator[replicate.Client]:
        """Yield the client with a token."""
        client = replicate.Client(api_token=token, base_url=self.pair.edge.url, trust_env=False)
        try:
            yield client
        finally:
            client._client.close()


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    tokens = TokenFile(folder)
    tokens.make("nobody-asks")
    async with running_pair(folder, edge={"tokens_file": str(tokens.path)}) as pair:
        yield Guarded(pair, tokens)


async def test_31_a_bad_token_is_unauthenticated(guarded: Guarded) -> None:
    with guarded.client("r8_bad") as client:
        for act in (
            lambda: client.models.predictions.create(MODEL, input={"prompt": "x"}),
            lambda: client.predictions.get("a" * 26),
            lambda: client.run(MODEL, input={"prompt": "x"}),
        ):
            with pytest.raises(ReplicateError) as raised:
                await in_thread(act)
            assert (raised.value.status, raised.value.title) == (401, "Unauthenticated")
            assert raised.value.detail == "You did not pass a valid authentication token"


async def test_31_refusals_at_paths_that_other_apis_share_are_replicate_errors(guarded: Guarded) -> None:
    with guarded.client("r8_bad") as client:
        for act in (client.models.list, lambda: client.models.get(MODEL)):
            with pytest.raises(ReplicateError) as raised:
                await in_thread(act)
            assert (raised.value.status, raised.value.title) == (401, "Unauthenticated")
            assert raised.value.detail == "You did not pass a valid authentication token"
    with guarded.client(guarded.tokens.make("py")) as client:
        with pytest.raises(ReplicateError) as raised:
            await in_thread(lambda: client.models.get("acme/nope"))
        assert (raised.value.status, raised.value.title) == (404, "Model not found")
        assert raised.value.detail


async def test_31_a_good_token_runs_and_streams(guarded: Guarded) -> None:
    prompt, text = numbered(5)
    with guarded.client(guarded.tokens.make("py")) as client:
        output = await in_thread(lambda: client.run(MODEL, input={"prompt": prompt}))
        assert "".join(output) == text
        events = await in_thread(lambda: list(client.stream(MODEL, input={"prompt": prompt})))
        assert "".join(str(event) for event in events) == text


async def test_31_a_missing_scope_is_a_replicate_error(guarded: Guarded) -> None:
    with guarded.client(guarded.tokens.make("py", Scope.READ)) as client:
        with pytest.raises(ReplicateError) as raised:
            await in_thread(lambda: client.models.predictions.create(MODEL, input={"prompt": "x"}))
        assert (raised.value.status, raised.value.title) == (403, "Forbidden")


async def test_42_a_throttled_get_succeeds_after_the_pause_it_was_told(guarded: Guarded) -> None:
    pair = guarded.pair
    token = guarded.tokens.make("slow", limits=Limits(requests_per_minute=30))
    with guarded.client(token) as client:
        create = client.models.predictions.create
        made = await in_thread(lambda: create(MODEL, input={"prompt": script(pieces=["a"])}))
        before = pair.edge.log.count('"status": 429')
        began = time.monotonic()
        for _ in range(31):
            assert (await in_thread(lambda: client.predictions.get(made.id))).id == made.id
        spent_s = time.monotonic() - began
    throttled = pair.edge.log.count('"status": 429') - before
    assert throttled >= 1 and spent_s >= 1  # it waited for what Retry-After said, and asked again
