"""Owns which web pages and which names may reach an edge that asks for no token. Pure.

Such an edge listens on loopback only, but a page in the user's own browser reaches that too: under a
name of the page's own that was rebound to 127.0.0.1 (then `Host` is that name), or by a plain POST
across origins, which needs no preflight (then `Origin` is the page's). So `Host` must be a loopback
name, the public base's host or one of the settings, and `Origin`, if there is one, must be too, or be
one that CORS admits. `null`, the origin of local files and sandboxed frames, is admitted by `*` only.
"""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

_AUTHORITY: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/?#@]+)(?::[0-9]{1,5})?")
_ORIGIN: Final = re.compile(r"https?://([^/?#@]+)")
ANY_ORIGIN: Final = "*"


class WebCallers:
    """What is admitted. Never raises on what callers send."""

    __slots__ = ("_hosts", "_origins")

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        """`hosts` are names without port, beside the loopback ones; `origins` are those of CORS."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)

    def admits_host(self, authority: str) -> bool:
        """Return whether a request for `host[:port]` is meant for us."""
        match = _AUTHORITY.fullmatch(authority.strip().lower())
        return match is not None and self._is_ours(match[1].strip("[]").removesuffix("."))

    def admits_origin(self, origin: str) -> bool:
        """Return whether a page of this origin may ask."""
        lowered = origin.strip().lower()
        if ANY_ORIGIN in self._origins or lowered in self._origins:
            return True
        match = _ORIGIN.fullmatch(lowered)
        return match is not None and self.admits_host(match[1])

    def _is_ours(self, host: str) -> bool:
        return host in self._hosts or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address without port means this machine (RFC 6761 §6.3)."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
