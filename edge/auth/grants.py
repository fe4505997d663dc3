"""Owns what a token grants, and the form in which grants are kept: never the token, only a hash of it.

The secret has 190 random bits, so a plain SHA-256 of it cannot be searched and no slow hash is
needed. The hash covers the id too, so a grant's hash cannot be moved to another id.
"""

import enum
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edge.auth.token_format import ApiToken, is_token_id

FORMAT: Final = 1
MAX_OWNER_CHARS: Final = 64

_DOMAIN: Final = b"tailrace api token v1\0"
_OWNER: Final = rf"^[A-Za-z0-9][A-Za-z0-9._@+-]{{0,{MAX_OWNER_CHARS - 1}}}$"
_HASH: Final = r"^[0-9a-f]{64}$"
_NOBODYS_HASH: Final = "0" * 64


class Scope(enum.Enum):
    """One thing a token may do."""

    CREATE = "predictions:create"
    READ = "predictions:read"
    CANCEL = "predictions:cancel"
    ADMIN = "admin"
    """All of these, and reading and cancelling everybody's predictions."""


PREDICTIONS: Final = frozenset((Scope.CREATE, Scope.READ, Scope.CANCEL))
"""What a token may do if nothing else is said."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one token may ask for; None leaves it to the settings."""

    creates_per_minute: int | None = None
    requests_per_minute: int | None = None
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """One token as it is kept."""

    id: str
    hash: str = field(repr=False)
    """Of the secret, as `hash_token` makes it."""

    owner: str
    """Whose predictions it makes and sees."""

    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    """From when it is refused; None: never."""

    limits: Limits = field(default_factory=Limits)

    def has(self, scope: Scope) -> bool:
        """Return whether it may do what `scope` stands for."""
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def is_expired(self, now: datetime) -> bool:
        """Return whether its time is over."""
        return self.expires_at is not None and now >= self.expires_at


class GrantsError(Exception):
    """The kept form cannot be read; the message is for operators and repeats no hash."""


def hash_token(token: ApiToken) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(_DOMAIN + f"{token.id}_{token.secret}".encode()).hexdigest()


class GrantTable:
    """All grants, by id."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        """Raises GrantsError when two have one id."""
        self._grants: dict[str, Grant] = {}
        for grant in grants:
            if grant.id in self._grants:
                raise GrantsError(f"the token id {grant.id} stands there twice")
            self._grants[grant.id] = grant

    @property
    def grants(self) -> tuple[Grant, ...]:
        """All of them, in their order."""
        return tuple(self._grants.values())

    def find(self, token: ApiToken, now: datetime) -> Grant | None:
        """Return what `token` grants now; None for an unknown, wrong or expired one.

        Takes as long for an unknown id as for a wrong secret.
        """
        grant = self._grants.get(token.id)
        kept = grant.hash if grant is not None else _NOBODYS_HASH
        is_right = hmac.compare_digest(kept, hash_token(token))
        if grant is None or not is_right or grant.is_expired(now):
            return None
        return grant


class _KeptLimits(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    creates_per_minute: Annotated[int, Field(ge=1)] | None = None
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None


class _KeptGrant(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str
    hash: Annotated[str, Field(pattern=_HASH)]
    owner: Annotated[str, Field(pattern=_OWNER)]
    scopes: list[Scope]
    created: datetime
    expires: datetime | None = None
    limits: _KeptLimits = _KeptLimits()


class _KeptGrants(BaseModel):
    model_config = ConfigDict(extra="forbid")
    format: Literal[1]
    tokens: list[_KeptGrant]


def encode_grants(table: GrantTable) -> str:
    """Return the table as JSON text."""
    kept = _KeptGrants(format=FORMAT, tokens=[_to_kept(grant) for grant in table.grants])
    return kept.model_dump_json(indent=2, exclude_none=True) + "\n"


def decode_grants(text: str | bytes) -> GrantTable:
    """Return the table that `text` is the JSON of. Raises GrantsError."""
    try:
        kept = _KeptGrants.model_validate_json(text)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        where = ".".join(map(str, faults[0]["loc"])) or "the file"
        raise GrantsError(f"{where}: {faults[0]['msg']}") from None
    return GrantTable(_from_kept(grant) for grant in kept.tokens)


def check_owner(owner: str) -> None:
    """Raise GrantsError unless `owner` can own predictions."""
    try:
        _KeptGrant(id="", hash=_NOBODYS_HASH, owner=owner, scopes=[], created=datetime.now(UTC))
    except ValidationError:
        text = f"an owner is 1 to {MAX_OWNER_CHARS} of letters, digits and . _ @ + -, a letter or digit first"
        raise GrantsError(text) from None


def parse_scopes(texts: Iterable[str]) -> frozenset[Scope]:
    """Return the scopes of these names. Raises GrantsError."""
    known: Mapping[str, Scope] = {scope.value: scope for scope in Scope}
    names = list(texts)
    for name in names:
        if name not in known:
            raise GrantsError(f"there is no scope {name!r:.80}; there are {', '.join(known)}")
    return frozenset(known[name] for name in names)


def _to_kept(grant: Grant) -> _KeptGrant:
    limits = grant.limits
    return _KeptGrant(
        id=grant.id,
        hash=grant.hash,
        owner=grant.owner,
        scopes=[scope for scope in Scope if scope in grant.scopes],
        created=grant.created_at,
        expires=grant.expires_at,
        limits=_KeptLimits(
            creates_per_minute=limits.creates_per_minute,
            requests_per_minute=limits.requests_per_minute,
            concurrency=limits.concurrency,
        ),
    )


def _from_kept(kept: _KeptGrant) -> Grant:
    if not is_token_id(kept.id):
        raise GrantsError(f"{kept.id!r:.40} is no token id")
    limits = Limits(kept.limits.creates_per_minute, kept.limits.requests_per_minute, kept.limits.concurrency)
    expires = None if kept.expires is None else _aware(kept.expires)
    return Grant(
        kept.id, kept.hash, kept.owner, frozenset(kept.scopes), _aware(kept.created), expires, limits
    )


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
