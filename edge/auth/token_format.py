"""Owns the text of an API token: `tr_<id>_<secret>_<checksum>`. Pure.

The id (8 characters) names the token in lists and logs; the secret is 32 characters of base62, 190
bits; the checksum is CRC-32 of all before it as 6 characters of base62. Prefix and checksum let
secret scanners find a token in a commit without false alarms, as GitHub's do
(https://github.blog/2021-04-05-behind-githubs-new-authentication-token-formats/); the checksum is no
protection, and grants nothing.
"""

import re
import zlib
from dataclasses import dataclass
from typing import Final

PREFIX: Final = "tr"
ID_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_CHARS: Final = 8
SECRET_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_CHARS: Final = 32
CHECKSUM_CHARS: Final = 6
"""62⁶ is above 2³²."""

_TOKEN: Final = re.compile(
    rf"({PREFIX}_([0-9a-z]{{{ID_CHARS}}})_([0-9A-Za-z]{{{SECRET_CHARS}}}))_([0-9A-Za-z]{{{CHECKSUM_CHARS}}})"
)
_ID: Final = re.compile(rf"[0-9a-z]{{{ID_CHARS}}}")


@dataclass(frozen=True, slots=True, repr=False)
class ApiToken:
    """A well-formed token. It has no `repr`, so that no log can hold one by accident."""

    id: str
    secret: str

    @property
    def text(self) -> str:
        """The token as its holder sends it."""
        body = f"{PREFIX}_{self.id}_{self.secret}"
        return f"{body}_{checksum(body)}"


def parse_token(text: str) -> ApiToken | None:
    """Return the token that `text` is, None when it is none or was mistyped. Never raises."""
    match = _TOKEN.fullmatch(text)
    if match is None or match[4] != checksum(match[1]):
        return None
    return ApiToken(match[2], match[3])


def is_token_id(text: str) -> bool:
    """Return whether `text` could be a token's id."""
    return _ID.fullmatch(text) is not None


def checksum(body: str) -> str:
    """Return the six characters that end a token with this `body`."""
    number = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(CHECKSUM_CHARS):
        number, digit = divmod(number, len(SECRET_ALPHABET))
        digits.append(SECRET_ALPHABET[digit])
    return "".join(reversed(digits))
