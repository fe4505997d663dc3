"""What tokens grant and how that is kept: `edge.auth.grants`."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edge.auth.grants import (
    PREDICTIONS,
    Grant,
    GrantsError,
    GrantTable,
    Limits,
    Scope,
    check_owner,
    decode_grants,
    encode_grants,
    hash_token,
    parse_scopes,
)
from edge.auth.token_format import ApiToken

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOKEN = ApiToken("0123abcd", "A" * 32)


def grant(token: ApiToken = TOKEN, **changes: Any) -> Grant:
    values: dict[str, Any] = {"owner": "ann", "scopes": PREDICTIONS, "created_at": NOW} | changes
    return Grant(token.id, hash_token(token), **values)


def kept(**changes: Any) -> dict[str, Any]:
    (found,) = json.loads(encode_grants(GrantTable([grant()])))["tokens"]
    return {"format": 1, "tokens": [found | changes]}


def test_a_table_is_read_back_as_it_was_written() -> None:
    table = GrantTable(
        [
            grant(),
            grant(
                ApiToken("zzzzzzzz", "b" * 32),
                owner="bob@example.org",
                scopes=frozenset([Scope.ADMIN]),
                expires_at=NOW + timedelta(days=90),
                limits=Limits(1, 2, 3),
            ),
            grant(ApiToken("00000000", "b" * 32), scopes=frozenset()),
        ]
    )
    assert decode_grants(encode_grants(table)).grants == table.grants
    assert TOKEN.secret not in encode_grants(table)


def test_only_the_whole_token_is_found() -> None:
    table = GrantTable([grant(), grant(ApiToken("other000", "B" * 32), owner="bob")])
    assert table.find(TOKEN, NOW) == grant()
    assert table.find(ApiToken(TOKEN.id, "B" * 32), NOW) is None
    assert table.find(ApiToken("other000", TOKEN.secret), NOW) is None
    assert table.find(ApiToken("unknown0", TOKEN.secret), NOW) is None


def test_the_hash_belongs_to_the_id() -> None:
    moved = Grant("moved000", hash_token(TOKEN), "ann", PREDICTIONS, NOW)
    assert GrantTable([moved]).find(ApiToken("moved000", TOKEN.secret), NOW) is None


def test_an_expired_token_is_none() -> None:
    table = GrantTable([grant(expires_at=NOW)])
    assert table.find(TOKEN, NOW - timedelta(microseconds=1)) is not None
    assert table.find(TOKEN, NOW) is None


def test_admin_may_do_everything() -> None:
    assert all(grant(scopes=frozenset([Scope.ADMIN])).has(scope) for scope in Scope)
    reader = grant(scopes=frozenset([Scope.READ]))
    assert [scope for scope in Scope if reader.has(scope)] == [Scope.READ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        json.dumps({"format": 2, "tokens": []}),
        json.dumps(kept(id="SHOUTING")),
        json.dumps(kept(hash="short")),
        json.dumps(kept(hash="A" * 64)),
        json.dumps(kept(owner="")),
        json.dumps(kept(owner="(nobody)")),
        json.dumps(kept(scopes=["everything"])),
        json.dumps(kept(limits={"concurrency": 0})),
        json.dumps(kept(limits={"concurency": 1})),
        json.dumps(kept(secret="x")),
        json.dumps({"format": 1, "tokens": kept()["tokens"] * 2}),
    ],
)
def test_what_cannot_be_read_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(GrantsError) as refused:
        decode_grants(text)
    assert hash_token(TOKEN) not in str(refused.value)


@pytest.mark.parametrize("owner", ["ann", "a", "org-1.team_2@example.org+x", "9" * 64])
def test_a_sound_owner(owner: str) -> None:
    check_owner(owner)


@pytest.mark.parametrize("owner", ["", " ann", "(nobody)", "-x", "9" * 65, "a b", "ü", "a\n", "a/b"])
def test_no_owner(owner: str) -> None:
    with pytest.raises(GrantsError):
        check_owner(owner)


def test_scopes_by_name() -> None:
    assert parse_scopes(["admin", "predictions:read"]) == {Scope.ADMIN, Scope.READ}
    with pytest.raises(GrantsError, match="there are predictions:create"):
        parse_scopes(["predictions:*"])


def test_times_without_zone_are_utc() -> None:
    table = decode_grants(json.dumps(kept(created="2026-03-01T12:00:00", expires="2026-03-02T00:00:00")))
    assert table.grants[0].created_at == NOW
    assert table.find(TOKEN, NOW) is not None
