"""Owns lists: the query of `GET /predictions`, cursors, and the absolute URL of the next page.

A cursor is the service's own page token, which is checked there: a damaged or made-up one is a 422.
The next page's URL repeats the filters, so it can be followed as it is. `created_after` counts its
own moment in, as Replicate's does; `created_before` does not.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import orjson
from starlette.datastructures import QueryParams

from edge.protocol.problems import InvalidField
from edge.protocol.timestamps import format_timestamp
from edge.replicate.render import Links, render_listed
from edge.replicate.schemas import InvalidInput
from edge.upstream.records import PredictionPage

PAGE_SIZE: Final = 100
MAX_CURSOR_CHARS: Final = 1024
"""Far above any page token."""

_SOURCES: Final = ("api", "web")
_INSTANT: Final = timedelta(microseconds=1)
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
"""Nothing is older; leaves room to go an instant or a time zone back."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a caller wants to see of all predictions."""

    cursor: str = ""
    created_after: datetime | None = None
    """Its own moment included."""

    created_before: datetime | None = None
    source: str = ""
    """Empty for any."""

    @property
    def after_exclusive(self) -> datetime | None:
        """`created_after` as the service counts."""
        return None if self.created_after is None else self.created_after - _INSTANT

    def next_query(self, cursor: str) -> str:
        """Return the query of the page that `cursor` begins."""
        pairs = [("cursor", cursor)]
        if self.created_after is not None:
            pairs.append(("created_after", format_timestamp(self.created_after)))
        if self.created_before is not None:
            pairs.append(("created_before", format_timestamp(self.created_before)))
        if self.source:
            pairs.append(("source", self.source))
        return urlencode(pairs)


def read_list_query(query: QueryParams) -> ListQuery:
    """Return what the query asks for. Raises InvalidInput; what it does not know it ignores."""
    source = query.get("source", "")
    if "source" in query and source not in _SOURCES:
        raise InvalidInput(InvalidField("enum", "source", "Must be one of api, web"))
    return ListQuery(
        cursor=_cursor(query),
        created_after=_moment(query, "created_after"),
        created_before=_moment(query, "created_before"),
        source=source,
    )


def refuse_cursor(query: QueryParams) -> None:
    """Raise InvalidInput for any cursor: for lists of one page, which give none."""
    if "cursor" in query:
        raise invalid_cursor()


def invalid_cursor() -> InvalidInput:
    """Return the fault of a cursor that we did not give."""
    return InvalidInput(InvalidField("invalid", "cursor", "Must be from the URL of a next page"))


def render_page(page: PredictionPage, links: Links, query: ListQuery) -> bytes:
    """Return a page of predictions as JSON, in the service's order: newest first."""
    following = None
    if page.next_page_token:
        following = links.base.url(f"/v1/predictions?{query.next_query(page.next_page_token)}")
    results = [render_listed(record, links) for record in page.records]
    return orjson.dumps({"next": following, "previous": None, "results": results})


def _cursor(query: QueryParams) -> str:
    cursor = query.get("cursor", "")
    if "cursor" in query and not (0 < len(cursor) <= MAX_CURSOR_CHARS and cursor.isascii()):
        raise invalid_cursor()
    return cursor


def _moment(query: QueryParams, name: str) -> datetime | None:
    """Return a moment of ISO 8601; without an offset it is UTC.

    A plus sign that was not percent-encoded has arrived as a blank, and is put back.
    """
    if name not in query:
        return None
    text = query[name].strip()
    head, blank, offset = text.rpartition(" ")
    if blank and ":" in head and len(offset) == 5:
        text = f"{head}+{offset}"
    try:
        moment = datetime.fromisoformat(text)
        in_utc = (moment if moment.utcoffset() is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        fault = InvalidField("format", name, "Must be a time in ISO 8601, like 2026-11-30T18:47:08Z")
        raise InvalidInput(fault) from None
    return max(in_utc, _EARLIEST)
