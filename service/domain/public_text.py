"""Text that leaves the service: valid, without NUL, and of a bounded size."""

from __future__ import annotations

MAX_ERROR_BYTES = 1024
"""The most an error's text may have, in every representation of a prediction."""


def public_text(text: str, limit_bytes: int) -> str:
    """Return `text` fit for a message: valid UTF-8, no NUL, cut between characters with "…"."""
    data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode("utf-8")
    mark = "…"
    kept = data[: limit_bytes - len(mark.encode())].decode("utf-8", "ignore")
    return kept + mark
