"""Owns which request facts travel to the service as gRPC metadata, and in what form.

Specification: gRPC over HTTP/2, "Custom-Metadata": lower-case keys of `0-9a-z_-.`, values of
printable ASCII, `grpc-` reserved. A bad pair would fail the whole call, so it is left out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from protos import metadata as keys

_KEY: Final = re.compile(r"[0-9a-z_.-]{1,64}")
_VALUE: Final = re.compile(r"[ -~]{1,256}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The HTTP request on whose behalf a call is made."""

    request_id: str = ""
    """The edge's name for it; repeated in both logs."""

    traceparent: str = ""
    """W3C trace context as received; passed on, never trusted."""

    owner: str = ""
    """Whose predictions it makes; empty for nobody's, where there are no API tokens."""

    sees_all: bool = False
    """Whether it may read and cancel everybody's predictions."""

    @property
    def acts_for(self) -> str:
        """For whom it reads and cancels, as the service's `owner`: empty is everybody."""
        return "" if self.sees_all else self.owner

    def for_everybody(self) -> "Caller":
        """Return the caller with the right to see all, for routes whose URL is the credential."""
        return replace(self, sees_all=True)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs to send."""
        return clean_metadata(((keys.REQUEST_ID, self.request_id), (keys.TRACEPARENT, self.traceparent)))


def clean_metadata(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return `pairs` with keys in lower case, without reserved, binary, malformed and blank ones."""
    lowered = ((key.lower(), value.strip(" ")) for key, value in pairs)
    return tuple(
        (key, value)
        for key, value in lowered
        if _KEY.fullmatch(key)
        and not key.startswith(("grpc-", ":"))
        and not key.endswith("-bin")
        and _VALUE.fullmatch(value)
    )
