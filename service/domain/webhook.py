"""Webhooks: whom to tell of what, under which name, and how a call is signed.

Owns the event filter, the `webhook-id` and the signature of Standard Webhooks 1.0.0
(spec/standard-webhooks.md: HMAC-SHA256 over `id.timestamp.body`). When calls are made is
`webhook_calls`, how often they are repeated `webhook_delivery`, whom they may reach
`webhook_target`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

MAX_CONTEXT_BYTES = 64 * 1024
_OWNER_KEY = b"tailrace webhook key of owner\n"
SECRET_PREFIX = "whsec_"
MIN_SECRET_BYTES = 24
MAX_SECRET_BYTES = 64


class WebhookEvent(Enum):
    """When a call is made; the values are the names in a filter."""

    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Whom to tell of a prediction's progress."""

    url: str
    events: tuple[WebhookEvent, ...] = ()
    """As the caller gave them; empty is all of them."""
    context: str = ""
    """JSON that the body is made with; at most 64 KiB, empty once the data has been removed."""

    def wants(self, event: WebhookEvent) -> bool:
        """Whether the filter lets `event` through."""
        return not self.events or event in self.events


class BadSecret(Exception):
    """A secret is not one of Standard Webhooks; the text never repeats it."""


def delivery_id(prediction_id: str, event: WebhookEvent, sequence: int) -> str:
    """Return the `webhook-id`: the same for each attempt, another for each event."""
    return f"msg_{prediction_id}_{event.value}_{sequence}"


def signature_header(secrets: Sequence[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return `webhook-signature`: one `v1` item a secret, so that either side can change secrets first."""
    return " ".join(sign(secret, message_id, timestamp_s, body) for secret in secrets)


def owner_secrets(secrets: Sequence[bytes], owner: str) -> tuple[bytes, ...]:
    """Return what the calls of an owner's predictions are signed with: keys of its own, made from `secrets`.

    Who may ask for one owner's key can imitate no other owner's calls. Nobody's are signed with
    `secrets` themselves.
    """
    if not owner:
        return tuple(secrets)
    return tuple(hmac.digest(secret, _OWNER_KEY + owner.encode(), hashlib.sha256) for secret in secrets)


def sign(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return one signature of exactly these bytes: `v1,` and standard base64."""
    signed = f"{message_id}.{timestamp_s}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()


def secret_key(secret: bytes) -> str:
    """Return the text form of a secret: `whsec_` and standard base64.

    Standard, not url-safe: Replicate's clients take what follows the last underscore for the key.
    """
    return SECRET_PREFIX + base64.b64encode(secret).decode()


def read_secret_key(text: str) -> bytes:
    """Return the secret of a text form. Raises BadSecret."""
    if not text.startswith(SECRET_PREFIX):
        raise BadSecret(f"a webhook secret starts with {SECRET_PREFIX}")
    try:
        secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        raise BadSecret(f"after {SECRET_PREFIX} there must be standard base64") from None
    if not MIN_SECRET_BYTES <= len(secret) <= MAX_SECRET_BYTES:
        raise BadSecret(f"a webhook secret has {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes")
    return secret


def read_secret_keys(lines: Iterable[str]) -> tuple[bytes, ...]:
    """Return the secrets of a file's lines, the current one first. Raises BadSecret."""
    secrets = tuple(read_secret_key(line.strip()) for line in lines if line.strip())
    if not secrets:
        raise BadSecret("there must be at least one webhook secret")
    return secrets
