"""Which addresses may be called: public unicast, whatever form a private one hides in."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.address_policy import is_allowed, unwrapped

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.215.14", "172.32.0.1", "100.128.0.1", "192.0.1.1", "223.255.255.255",
    "2606:4700::1111", "2a00:1450:4001:81b::200e", "2400:cb00::1", "3ffe::1", "::ffff:8.8.8.8",
]  # fmt: skip
PRIVATE = [
    "127.0.0.1", "127.255.255.254", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255",
    "192.168.0.1", "100.64.0.1", "100.127.255.255", "::1", "fc00::1", "fd12:3456::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:192.168.1.1",
]  # fmt: skip
NEVER = [
    "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "168.63.129.16", "100.100.100.200", "192.0.0.1",
    "192.0.0.8", "192.0.0.170", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
    # IPv6 forms that lead to IPv4 ones, and what ipaddress.is_global takes for global.
    "::", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "::7f00:1",
    "::127.0.0.1", "fec0::1", "fe80::1", "ff02::1", "ff0e::1", "3fff::1", "5f00::1", "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2001:10::1", "2001:20::1", "100::1",
    "::ffff:0:7f00:1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "fd00:ec2::254", "4000::1", "1000::1",
    "fe80::1%eth0", "2606:4700::1111%1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_ones_are_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
def test_private_ones_only_when_the_settings_say_so(text: str) -> None:
    assert not is_allowed(ip_address(text))
    assert is_allowed(ip_address(text), allow_private=True)


@pytest.mark.parametrize("text", NEVER)
def test_others_never(text: str) -> None:
    assert not is_allowed(ip_address(text))
    assert not is_allowed(ip_address(text), allow_private=True)


@given(st.ip_addresses(v=4))
def test_a_mapped_address_is_judged_like_its_own(address: IPv4Address) -> None:
    mapped = IPv6Address(b"\0" * 10 + b"\xff\xff" + address.packed)
    assert unwrapped(mapped) == address
    assert is_allowed(mapped) == is_allowed(address)
    # No other form that carries an IPv4 address is let through: NAT64, 6to4, compatible.
    for packed in (
        b"\0\x64\xff\x9b" + b"\0" * 8 + address.packed,
        b"\x20\x02" + address.packed + b"\0" * 10,
        b"\0" * 12 + address.packed,
    ):
        assert not is_allowed(IPv6Address(packed)) and packed


@given(st.ip_addresses())
def test_nothing_is_allowed_that_python_knows_to_be_local(address: IPv4Address | IPv6Address) -> None:
    if is_allowed(address):
        plain = unwrapped(address)
        assert plain.is_global and not plain.is_multicast and not plain.is_private
