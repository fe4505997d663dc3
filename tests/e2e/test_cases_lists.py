"""Public bug reports about lists and their pages: the real service and edge, with tokens of two owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import httpx
import pytest

from edge.auth.grants import Limits
from tests.support.pair import LIMIT_S, MODEL, Pair, running_pair, script
from tests.support.tokens import TokenFile, bearer

OF_ANN = 101
"""One more than a page holds."""


@dataclass
class Lists:
    """A pair where ann has two pages of predictions, bob one, and cay none."""

    pair: Pair
    tokens: dict[str, str]
    ids: dict[str, set[str]]

    async def get(self, owner: str, query: str = "") -> httpx.Response:
        """Ask for an owner's list."""
        url = f"{self.pair.edge.url}/v1/predictions{query}"
        return await self.pair.http.get(url, headers=bearer(self.tokens[owner]))

    async def cursor(self) -> str:
        """Return the cursor of ann's second page."""
        following = (await self.get("ann")).json()["next"]
        return parse_qs(urlsplit(following).query)["cursor"][0]


@pytest.fixture(scope="module")
async def lists(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lists]:
    folder = tmp_path_factory.mktemp("lists")
    file = TokenFile(folder)
    limits = Limits(creates_per_minute=100_000, requests_per_minute=100_000)
    tokens = {owner: file.make(owner, limits=limits) for owner in ("ann", "bob", "cay")}
    body = {"input": {"prompt": script(pieces=["a"])}}
    async with running_pair(folder, edge={"tokens_file": str(file.path)}) as pair:
        found = Lists(pair, tokens, {owner: set() for owner in tokens})
        for owner, count in (("ann", OF_ANN), ("bob", 2)):
            for _ in range(count):
                url = f"{pair.edge.url}/v1/models/{MODEL}/predictions"
                answer = await pair.http.post(url, json=body, headers=bearer(tokens[owner]))
                found.ids[owner].add(answer.json()["id"])
        yield found


def check_refused(answer: httpx.Response) -> None:
    problem: dict[str, Any] = answer.json()
    assert (answer.status_code, problem["status"]) == (422, 422)
    assert problem["title"] and problem["detail"]
    assert [fault["field"] for fault in problem["invalid_fields"]] == ["cursor"]


async def test_b077_the_last_page_and_an_empty_list_end_with_null(lists: Lists) -> None:
    first = (await lists.get("ann")).json()
    assert len(first["results"]) == OF_ANN - 1 and first["next"] and first["previous"] is None
    last = (await lists.get("ann", f"?cursor={await lists.cursor()}")).json()
    assert len(last["results"]) == 1
    one = (await lists.get("bob")).json()
    assert len(one["results"]) == 2
    none = (await lists.get("cay")).json()
    assert none["results"] == []
    for page in (last, one, none):
        assert {name: page[name] for name in ("next", "previous")} == {"next": None, "previous": None}


async def test_b078_a_cursor_that_is_none_of_ours_is_refused(lists: Lists) -> None:
    cursor = await lists.cursor()
    flipped = [
        cursor[:at] + chr(ord(letter) ^ 1 << bit) + cursor[at + 1 :]
        for at, letter in enumerate(cursor)
        for bit in (0, at % 7)
    ]
    with anyio.fail_after(2 * LIMIT_S):
        for bad in ("5", "", "\0", "\ud55c", "null", "a" * 7000, cursor + "=", cursor + "A", *flipped):
            check_refused(await lists.get("ann", f"?cursor={quote(bad)}"))
        for length in range(len(cursor)):
            check_refused(await lists.get("ann", f"?cursor={cursor[:length]}"))


async def test_b078_a_cursor_of_ten_thousand_bytes_is_a_problem_too(lists: Lists) -> None:
    answer = await lists.get("ann", f"?cursor={'a' * 10_000}")
    assert answer.status_code == 414  # the request line has its own limit
    problem = answer.json()
    assert problem["title"] and problem["detail"] and problem["status"] == 414


async def test_b078_a_cursor_of_another_owner_shows_nothing_of_theirs(lists: Lists) -> None:
    answer = await lists.get("bob", f"?cursor={await lists.cursor()}")
    assert answer.status_code == 200
    assert {found["id"] for found in answer.json()["results"]} <= lists.ids["bob"]
    assert not lists.ids["bob"] & lists.ids["ann"]
