"""Owns stream tokens: the last part of a stream's URL, which is the credential for that one stream.

A token is the prediction's id and 26 characters of base32 of a truncated HMAC-SHA256 over it (RFC
2104, 128 bits); after an id that its creator chose, a dot stands between the two. It grants reading
of one prediction's events and nothing else, is the same on every edge with the same secret, and is
worth nothing once the prediction's data is removed.
"""

import base64
import hashlib
import hmac
import re
from typing import Final

MIN_SECRET_BYTES: Final = 16

_TAG_BYTES: Final = 16
_DOMAIN: Final = b"tailrace stream token v1\0"
_TOKEN: Final = re.compile(r"([a-z0-9]{26}|[a-z0-9-]{1,64}(?=\.))\.?([a-z2-7]{26})")
_OWN_ID: Final = re.compile(r"[a-z0-9]{26}")


class StreamTokens:
    """Issues and checks tokens with one secret."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        """Raises ValueError for a secret of less than 16 bytes."""
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a stream secret needs at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    def issue(self, prediction_id: str) -> str:
        """Return the token for a prediction: 52 characters for an id of the service's."""
        dot = "" if _OWN_ID.fullmatch(prediction_id) else "."
        return prediction_id + dot + self._tag(prediction_id)

    def find_prediction_id(self, token: str) -> str | None:
        """Return whose stream `token` opens; None when we did not issue it. In constant time."""
        match = _TOKEN.fullmatch(token)
        if match is None or not hmac.compare_digest(match[2], self._tag(match[1])):
            return None
        return match[1]

    def _tag(self, prediction_id: str) -> str:
        digest = hmac.digest(self._secret, _DOMAIN + prediction_id.encode(), hashlib.sha256)
        return base64.b32encode(digest[:_TAG_BYTES]).decode("ascii").rstrip("=").lower()
