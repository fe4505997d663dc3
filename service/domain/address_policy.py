"""Which network addresses a call to a caller's URL may reach: public unicast only.

Tables of our own, since `ipaddress.is_global` changes between Python releases and takes several ways
to a private address for global (NAT64 64:ff9b::/96, 6to4 2002::/16, IPv4-compatible ::/96,
site-local fec0::/10, multicast). Sources: the IANA special-purpose registries for IPv4 and IPv6, and
the metadata addresses of clouds. IPv6 is an allow-list (2000::/3), so what is new is refused.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_BLOCKED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carriers
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host
        "169.254.0.0/16",  # link-local, metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved and broadcast
    )
)
_PRIVATE_V4 = tuple(
    IPv4Network(text)
    for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
)
_UNICAST_V6 = IPv6Network("2000::/3")
_BLOCKED_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, ORCHID, benchmarking
        "2001:db8::/32",
        "2002::/16",  # 6to4: carries any IPv4 address
        "3fff::/20",
    )
)
_PRIVATE_V6 = (IPv6Network("::1/128"), IPv6Network("fc00::/7"))
_METADATA = frozenset({ip_address("100.100.100.200"), ip_address("fd00:ec2::254")})
"""Inside private networks, and never meant: Alibaba's and Amazon's."""


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address that an IPv4-mapped one (::ffff:0:0/96) stands for, else the address."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_allowed(address: Address, *, allow_private: bool = False) -> bool:
    """Whether a call may go to `address`.

    `allow_private` adds loopback and private networks, nothing else: link-local, multicast, reserved
    and translated addresses stay refused, and so do metadata services.
    """
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    address = unwrapped(address)
    if isinstance(address, IPv4Address):
        public = not any(address in network for network in _BLOCKED_V4)
        private = any(address in network for network in _PRIVATE_V4)
    else:
        public = address in _UNICAST_V6 and not any(address in network for network in _BLOCKED_V6)
        private = any(address in network for network in _PRIVATE_V6)
    return public or (allow_private and private and address not in _METADATA)
