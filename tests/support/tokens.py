"""API tokens in a file, for edges under test."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from edge.auth.grants import PREDICTIONS, Grant, Limits, Scope
from edge.auth.token_file import add_grant, remove_grant


class TokenFile:
    """A file of tokens that a test makes and revokes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokens.json"
        self.ids: dict[str, str] = {}
        """Token → its id."""

    def make(
        self,
        owner: str,
        *scopes: Scope,
        limits: Limits | None = None,
        expires_in: timedelta | None = None,
    ) -> str:
        """Add a token and return its text."""
        now = datetime.now(UTC)

        def grant(token_id: str, hashed: str) -> Grant:
            return Grant(
                token_id,
                hashed,
                owner,
                frozenset(scopes) or PREDICTIONS,
                now,
                None if expires_in is None else now + expires_in,
                limits or Limits(),
            )

        token, made = add_grant(self.path, grant)
        self.ids[token.text] = made.id
        return token.text

    def revoke(self, token: str) -> None:
        """Take a token away."""
        assert remove_grant(self.path, self.ids[token]) is not None


def bearer(token: str, **more: str) -> dict[str, str]:
    """Return headers that present a token."""
    return {"authorization": f"Bearer {token}"} | more
