"""Error text that is fit for a log entry and a status message."""

from __future__ import annotations

MAX_ERROR_BYTES = 1024
"""A gRPC status travels in 8 KiB of headers at most; a longer message hides the status itself."""


def error_text(text: str) -> str:
    """Return `text` without control characters, cut to 1 KiB of UTF-8 at a character's border."""
    if len(text) > MAX_ERROR_BYTES:
        text = text[: MAX_ERROR_BYTES + 1]
    shown = "".join(c if c >= " " and c != "\x7f" else " " for c in text).strip()
    data = shown.encode("utf-8", "replace")
    if len(data) <= MAX_ERROR_BYTES:
        return data.decode()
    end = "…"
    return data[: MAX_ERROR_BYTES - len(end.encode())].decode("utf-8", "ignore") + end
