"""Owns JSON as it goes out in answers and events: readable line by line by any reader.

RFC 8259 lets U+2028, U+2029 and U+0085 stand in a string as they are, but readers that split a stream
at every Unicode line end would cut the JSON there; so they are escaped. VT, FF and the separators
below U+0020 are escaped by JSON itself.
"""

from typing import Final

import orjson

_LINE_ENDS: Final = (
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    ("\u0085".encode(), rb"\u0085"),
)


def encode_json(value: object) -> bytes:
    """Return `value` as JSON in UTF-8, on one line by anybody's measure."""
    text = orjson.dumps(value)
    if not text.isascii():
        for line_end, escaped in _LINE_ENDS:
            text = text.replace(line_end, escaped)
    return text


def data_frame(value: object, *, event: str = "", event_id: str = "") -> bytes:
    """Return the SSE frame whose data is `value`; without `event:` and `id:` lines unless given."""
    head = f"event: {event}\n" if event else ""
    if event_id:
        head += f"id: {event_id}\n"
    return b"%sdata: %s\n\n" % (head.encode(), encode_json(value))
