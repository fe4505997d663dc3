"""Owns how moments are written in answers: RFC 3339, UTC, always six digits and `Z`.

Specification: RFC 3339 §5.6. A fixed form, because parsers in other languages accept fewer forms
than the specification allows.
"""

from datetime import UTC, datetime


def format_timestamp(moment: datetime) -> str:
    """Return `moment` as `YYYY-MM-DDTHH:MM:SS.ffffffZ` (27 characters).

    Raises ValueError when `moment` has no time zone, or its UTC date is outside the years 1 … 9999.
    """
    if moment.utcoffset() is None:
        raise ValueError("a timestamp needs a time zone")
    try:
        in_utc = moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("a timestamp must be in the years 1 to 9999, in UTC") from error
    return f"{in_utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
