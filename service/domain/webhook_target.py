"""The URL of a webhook: read once, by this parser alone, into what the transport connects to.

Deliberately narrower than RFC 3986: everything on which two parsers could differ is refused (user
names, backslashes, blanks and control characters, percent signs in the host, shortened, octal or
hexadecimal IPv4 addresses, zone ids, a trailing dot). Names that are not ASCII come in Punycode.
Whether a name's addresses may be called is judged when they are known, by `address_policy`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from service.domain.address_policy import is_allowed
from service.domain.errors import InvalidRequest
from service.domain.request import FieldViolation
from service.domain.webhook import Webhook

MAX_URL_BYTES = 2048
DEFAULT_PORTS = {"http": 80, "https": 443}
PUBLIC_PORTS = frozenset(DEFAULT_PORTS.values())

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\\]*)(?P<rest>[^#]*)(?P<fragment>#.*)?"
)
_PRINTABLE = re.compile(r"[\x21-\x7e]*")
_AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


class BadTarget(Exception):
    """The URL cannot be called; the text says what is wrong, for whoever gave it."""


@dataclass(frozen=True, slots=True)
class TargetPolicy:
    """What targets are allowed beside public ones by https."""

    allow_http: bool = False
    allow_private: bool = False
    """Loopback and private addresses, and any port."""


PUBLIC_TARGETS = TargetPolicy()
"""The default: public addresses by https."""


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """What to connect to and what to ask for there."""

    scheme: str
    """`http` or `https`."""
    host: str
    """A lower-case name, or an address without brackets."""
    port: int
    path: str
    """Path and query, at least `/`."""

    @property
    def authority(self) -> str:
        """The `Host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def read_target(url: str, policy: TargetPolicy) -> WebhookTarget:
    """Return what `url` names. Raises BadTarget for what is no such URL or is not allowed."""
    if len(url.encode("utf-8", "replace")) > MAX_URL_BYTES:
        raise BadTarget(f"must be at most {MAX_URL_BYTES} bytes")
    match = _URL.fullmatch(url)
    if match is None or "\\" in url or not _PRINTABLE.fullmatch(url):
        raise BadTarget("must be an absolute URL of printable ASCII characters, without blanks")
    scheme = match["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        raise BadTarget("must start with https://")
    if scheme == "http" and not policy.allow_http:
        raise BadTarget("must start with https://; plain http is not allowed by this service's settings")
    if "@" in match["authority"]:
        raise BadTarget("must not hold a user name or password")
    if match["fragment"] is not None:
        raise BadTarget("must not have a fragment")
    host, port_text = _host_and_port(match["authority"])
    port = int(port_text) if port_text else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65535 or (port not in PUBLIC_PORTS and not policy.allow_private):
        raise BadTarget("must use port 443 or 80")
    rest = match["rest"]
    return WebhookTarget(
        scheme, _checked_host(host, policy), port, rest if rest.startswith("/") else f"/{rest}"
    )


def check_webhook(webhook: Webhook | None, policy: TargetPolicy) -> None:
    """Refuse a webhook that could not be called. Raises InvalidRequest naming `webhook.url`."""
    if webhook is None:
        return
    try:
        read_target(webhook.url, policy)
    except BadTarget as error:
        raise InvalidRequest((FieldViolation("webhook.url", str(error)),)) from error


def _host_and_port(authority: str) -> tuple[str, str | None]:
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadTarget("must name a host: a name in ASCII (Punycode), or an IP address")
    return match["host"].lower(), match["port"]


def _checked_host(host: str, policy: TargetPolicy) -> str:
    """Return the host without brackets. Raises BadTarget for a bad name or an address not allowed."""
    address: IPv4Address | IPv6Address
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1])
        elif _NUMBER.fullmatch(host.rpartition(".")[2]):
            address = IPv4Address(host)
        else:
            if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
                raise BadTarget("must name a valid host")
            return host
    except ValueError:
        raise BadTarget("must name a valid IP address, written in full") from None
    if not is_allowed(address, allow_private=policy.allow_private):
        raise BadTarget("must not name a private, local or reserved address")
    return str(address)


def allowed_addresses(found: list[str], policy: TargetPolicy) -> tuple[str, ...]:
    """Return the addresses of a name in the order given. Raises BadTarget unless each is allowed.

    All of them, not one: a name that has a public address beside a private one is an attack.
    """
    if not found:
        raise BadTarget("the host has no address")
    for text in found:
        try:
            address = ip_address(text)
        except ValueError:
            raise BadTarget("the host has an address that cannot be read") from None
        if not is_allowed(address, allow_private=policy.allow_private):
            raise BadTarget("the host has a private, local or reserved address")
    return tuple(found)


def host_of(url: str) -> str:
    """Return what to count a URL's calls under: its host and port; empty for no URL."""
    match = _URL.fullmatch(url)
    return match["authority"].lower() if match else ""
