"""The page token: where a listing goes on, as text a caller hands back unread.

Owns its form: URL-safe base64 without padding of version, CRC-32, created_at in microseconds and
id. The checksum is against damage, not forgery: a token grants nothing that a listing does not.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from datetime import UTC, datetime, timedelta

from service.domain.errors import InvalidRequest
from service.domain.request import FieldViolation

_VERSION = 1
_HEAD = struct.Struct(">BIq")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_CHARACTERS = 1024
"""Far above any token of ours: ids are short."""


def encode_token(created_at: datetime, prediction_id: str) -> str:
    """Return the token of the page that follows this prediction."""
    created_us = (created_at - _EPOCH) // _MICROSECOND
    data = prediction_id.encode()
    packed = _HEAD.pack(_VERSION, _checksum(created_us, data), created_us) + data
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[datetime, str]:
    """Return created_at and id of the last prediction before the page.

    Raises:
        InvalidRequest: this is no token of ours; names `page_token`.
    """
    try:
        if len(token) > _MAX_CHARACTERS:
            raise ValueError("too long")
        packed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        version, checksum, created_us = _HEAD.unpack_from(packed)
        data = packed[_HEAD.size :]
        if version != _VERSION or checksum != _checksum(created_us, data):
            raise ValueError("wrong version or checksum")
        found = _EPOCH + created_us * _MICROSECOND, data.decode()
        if encode_token(*found) != token:
            raise ValueError("not in its one form")
    except (ValueError, OverflowError, binascii.Error, struct.error) as error:
        violation = FieldViolation("page_token", "must be a next_page_token from an earlier answer")
        raise InvalidRequest((violation,), detail=str(error)) from error
    return found


def _checksum(created_us: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(str(created_us).encode()))
