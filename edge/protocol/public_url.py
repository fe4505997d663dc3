"""Owns the absolute URLs in answers: which scheme, host and prefix callers reach us at.

In order: the configured public base; else what a trusted proxy forwards; else the `Host` header and
the prefix we were told to serve under. Never the address we are bound to, and never a forwarding
header of a peer that is not trusted. Hosts are checked before use (RFC 3986 §3.2.2, RFC 9110 §7.2).

The prefix appears once: the forwarded prefix replaces `root_path` instead of being added to it, and
the path given to `PublicBase.url` is that of a route, without any prefix.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from edge.protocol.forwarded import RawHeaders, TrustedProxies, header_values, read_forwarded

MAX_AUTHORITY_CHARS: Final = 255
"""Longest host with port: the longest DNS name."""

MAX_PREFIX_CHARS: Final = 256
"""Longest path prefix."""

_SCHEMES: Final = ("http", "https")
_AUTHORITY: Final = re.compile(
    r"(?:[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*\.?|\[(?P<ipv6>[0-9a-f:.]+)\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_PREFIX: Final = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*")
_PATH: Final = re.compile(r"/[!-~]*")
_BASE: Final = re.compile(r"([A-Za-z]+)://([^/?#]+)([^?#]*)")


class PublicUrlError(ValueError):
    """A configured base, prefix or path cannot be part of a URL; the message is for operators."""


class InvalidHost(ValueError):
    """The request names no host, or none that could be in a URL; it deserves a 400."""


@dataclass(frozen=True, slots=True)
class PublicBase:
    """Where callers reach us. Made by `parse_public_base` and `public_base`, which check it."""

    scheme: str
    """`http` or `https`."""

    authority: str
    """Host in lower case, with port if there is one."""

    prefix: str = ""
    """Path before every route: empty, or with a leading and without a trailing slash."""

    def url(self, path: str) -> str:
        """Return the absolute URL of a route's `path`, which may carry a query.

        Raises PublicUrlError unless `path` starts with a slash and is blank-free printable ASCII.
        """
        if not _PATH.fullmatch(path):
            raise PublicUrlError("a path must start with a slash and be printable ASCII")
        return f"{self.scheme}://{self.authority}{self.prefix}{path}"


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """What a request tells about where it was sent to, as in an ASGI scope."""

    scheme: str
    """Scheme of the connection: `http` or `https`."""

    headers: RawHeaders
    """All header lines."""

    peer: str | None = None
    """Address of the other end of the TCP connection; None when there is none."""

    root_path: str = ""
    """Prefix the whole application is served under; not that of a mount inside it."""


def parse_public_base(text: str) -> PublicBase:
    """Return the base that `text` (`https://host[:port][/prefix]`) names; a trailing slash is fine.

    Raises PublicUrlError for anything else, credentials, query and fragment included.
    """
    match = _BASE.fullmatch(text)
    if match is None or match[1].lower() not in _SCHEMES:
        raise PublicUrlError("a public base looks like https://example.com or https://host:8000/llm")
    authority = _find_authority(match[2])
    if authority is None:
        raise PublicUrlError("the host of the public base is not a valid host name or address")
    return PublicBase(match[1].lower(), authority, parse_prefix(match[3]))


def parse_prefix(text: str) -> str:
    """Return a path prefix without trailing slash; empty for `` and `/`.

    Raises PublicUrlError when `text` is too long or no absolute path of plain segments.
    """
    prefix = text.removesuffix("/")
    if len(prefix) > MAX_PREFIX_CHARS or not _PREFIX.fullmatch(prefix):
        raise PublicUrlError("a path prefix looks like /llm or /a/b")
    return prefix


def public_base(origin: RequestOrigin, configured: PublicBase | None, proxies: TrustedProxies) -> PublicBase:
    """Return the base for the answers to one request.

    Forwarded values that could not be part of a URL are ignored. Raises InvalidHost when no source
    names a valid host, PublicUrlError when the scheme or `root_path` of `origin` is unusable.
    """
    if configured is not None:
        return configured
    if origin.scheme not in _SCHEMES:
        raise PublicUrlError("the scheme of a request must be http or https")
    claim = read_forwarded(origin.headers, origin.peer, proxies)
    scheme = (claim.scheme or "").lower()
    return PublicBase(
        scheme if scheme in _SCHEMES else origin.scheme,
        _find_authority(claim.host or "") or _host_header(origin.headers),
        _forwarded_prefix(claim.prefix, parse_prefix(origin.root_path)),
    )


def _forwarded_prefix(claimed: str | None, own: str) -> str:
    if claimed is None:
        return own
    try:
        return parse_prefix(claimed)
    except PublicUrlError:
        return own


def _host_header(headers: RawHeaders) -> str:
    hosts = header_values(headers, b"host")
    authority = _find_authority(hosts[0]) if len(hosts) == 1 else None
    if authority is None:
        raise InvalidHost("the request needs exactly one valid Host header")
    return authority


def _find_authority(text: str) -> str | None:
    """Return `host[:port]` in lower case, or None when it is not valid."""
    if len(text) > MAX_AUTHORITY_CHARS or not text.isascii():
        return None
    lowered = text.lower()
    match = _AUTHORITY.fullmatch(lowered)
    if match is None or not 1 <= int(match["port"] or 1) <= 65535:
        return None
    if match["ipv6"] is not None:
        try:
            ipaddress.IPv6Address(match["ipv6"])
        except ValueError:
            return None
    return lowered
