"""The ids of predictions."""

from __future__ import annotations

import secrets
from base64 import b32encode


def new_id() -> str:
    """Return 26 lower-case base32 characters of 128 random bits."""
    return b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()
