"""Owns what a proxy in front of us says about the request it passes on, and whom we believe.

Specification: RFC 7239 (Forwarded) and the de facto `X-Forwarded-Proto`, `-Host`, `-Prefix`.
Whether the values are usable in a URL is checked in `public_url`.

Only a peer whose address is in a trusted network is believed. `peer` must be the address of the TCP
connection itself: a server that rewrites it from these very headers must not do so.

Which values count when proxies are chained:
- `X-Forwarded-*`: the rightmost, the one that the trusted peer itself wrote or let pass;
- `Forwarded`: from right to left for as long as the hop named by `for` is trusted too, so that the
  outermost trusted proxy has the word and anything a client put before that is ignored.

A proxy must overwrite or remove what clients send of the family we read. Read one family only where
the proxy is known to leave the other one alone.
"""

import enum
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from edge.protocol.header_lists import parse_elements

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Header lines as ASGI gives them: lower-case names, values in Latin-1."""

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class ForwardedFamily(enum.Enum):
    """Which headers of a trusted peer are read."""

    X_FORWARDED = "x-forwarded"
    FORWARDED = "forwarded"
    EITHER = "either"
    """`X-Forwarded-*` when any of the three is there, else `Forwarded`."""


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Whom we believe; the default believes nobody."""

    networks: tuple[IpNetwork, ...] = ()
    """Addresses of trusted peers."""

    family: ForwardedFamily = ForwardedFamily.EITHER
    """What we read of their headers."""

    def trusts(self, address: str | None) -> bool:
        """Return whether `address` is an IP address in a trusted network. Never raises."""
        if address is None:
            return False
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self.networks)


@dataclass(frozen=True, slots=True)
class ForwardedClaim:
    """What the proxy says the caller asked for; None where it says nothing. Not validated."""

    scheme: str | None = None
    host: str | None = None
    prefix: str | None = None


def parse_networks(texts: Iterable[str]) -> tuple[IpNetwork, ...]:
    """Return addresses (`127.0.0.1`) and networks (`10.0.0.0/8`, `fd00::/8`) as networks.

    Raises ValueError for text that is neither, and for a network with host bits set.
    """
    return tuple(ipaddress.ip_network(text) for text in texts)


def header_values(headers: RawHeaders, name: bytes) -> list[str]:
    """Return the values of all header lines called `name` (lower case), in their order."""
    return [value.decode("latin-1") for key, value in headers if key == name]


def read_forwarded(headers: RawHeaders, peer: str | None, proxies: TrustedProxies) -> ForwardedClaim:
    """Return what a trusted `peer` claims; an empty claim for any other peer. Never raises."""
    if not proxies.trusts(peer):
        return ForwardedClaim()
    match proxies.family:
        case ForwardedFamily.X_FORWARDED:
            return _x_forwarded(headers)
        case ForwardedFamily.FORWARDED:
            return _forwarded(headers, proxies)
        case ForwardedFamily.EITHER:
            claim = _x_forwarded(headers)
            return claim if claim != ForwardedClaim() else _forwarded(headers, proxies)
        case _:  # pragma: no cover
            assert_never(proxies.family)


def _x_forwarded(headers: RawHeaders) -> ForwardedClaim:
    return ForwardedClaim(
        scheme=_rightmost(headers, b"x-forwarded-proto"),
        host=_rightmost(headers, b"x-forwarded-host"),
        prefix=_rightmost(headers, b"x-forwarded-prefix"),
    )


def _rightmost(headers: RawHeaders, name: bytes) -> str | None:
    values = header_values(headers, name)
    return values[-1].rpartition(",")[2].strip(" \t") or None if values else None


def _forwarded(headers: RawHeaders, proxies: TrustedProxies) -> ForwardedClaim:
    scheme = host = None
    for element in reversed(parse_elements(header_values(headers, b"forwarded"))):
        hop = {parameter.name: parameter.value for parameter in reversed(element)}
        scheme = hop.get("proto") or scheme
        host = hop.get("host") or host
        if not proxies.trusts(_node_address(hop.get("for") or "")):
            break
    return ForwardedClaim(scheme=scheme, host=host)


def _node_address(node: str) -> str:
    """Return the address in an RFC 7239 §6 node, without brackets and port."""
    if node.startswith("["):
        return node[1:].partition("]")[0]
    return node.partition(":")[0]
