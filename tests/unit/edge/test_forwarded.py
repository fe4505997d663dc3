"""Forwarding headers: believed from trusted peers only."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.forwarded import (
    ForwardedClaim,
    ForwardedFamily,
    RawHeaders,
    TrustedProxies,
    parse_networks,
    read_forwarded,
)

PROXY = "10.0.0.1"
CLIENT = "203.0.113.9"
NETWORKS = parse_networks(["10.0.0.0/8", "fd00::/8", "127.0.0.1"])
PROXIES = TrustedProxies(NETWORKS)
X_HEADERS: RawHeaders = (
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"api.example"),
    (b"x-forwarded-prefix", b"/llm"),
)
X_CLAIM = ForwardedClaim("https", "api.example", "/llm")


def forwarded(*lines: str) -> RawHeaders:
    return tuple((b"forwarded", line.encode("latin-1")) for line in lines)


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.1.2.3", True),
        ("127.0.0.1", True),
        ("fd00::1", True),
        ("::ffff:10.1.2.3", True),
        ("::ffff:203.0.113.9", False),
        ("127.0.0.2", False),
        ("11.0.0.1", False),
        ("2001:db8::1", False),
        ("", False),
        ("unix", False),
        ("10.0.0.1 ", False),
        (None, False),
    ],
)
def test_trust_is_by_network(address: str | None, *, trusted: bool) -> None:
    assert PROXIES.trusts(address) is trusted


def test_nobody_is_trusted_by_default() -> None:
    assert read_forwarded(X_HEADERS, "127.0.0.1", TrustedProxies()) == ForwardedClaim()


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "*"])
def test_text_that_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host bits set|does not appear to be|unspecified"):
        parse_networks([text])


@pytest.mark.parametrize("family", list(ForwardedFamily))
@pytest.mark.parametrize("peer", [CLIENT, None, "not an address"])
def test_headers_of_a_peer_that_is_not_trusted_are_ignored(family: ForwardedFamily, peer: str | None) -> None:
    headers = (*X_HEADERS, *forwarded("proto=https;host=evil.example"))
    assert read_forwarded(headers, peer, TrustedProxies(NETWORKS, family)) == ForwardedClaim()


@pytest.mark.parametrize(
    ("family", "claim"),
    [
        (ForwardedFamily.X_FORWARDED, X_CLAIM),
        (ForwardedFamily.FORWARDED, ForwardedClaim("http", "other.example")),
        (ForwardedFamily.EITHER, X_CLAIM),
    ],
)
def test_only_the_chosen_family_is_read(family: ForwardedFamily, claim: ForwardedClaim) -> None:
    headers = (*X_HEADERS, *forwarded("proto=http;host=other.example"))
    assert read_forwarded(headers, PROXY, TrustedProxies(NETWORKS, family)) == claim


def test_either_falls_back_to_forwarded_only_without_any_x_header() -> None:
    line = forwarded("proto=https;host=api.example")
    assert read_forwarded(line, PROXY, PROXIES) == ForwardedClaim("https", "api.example")
    both = (*line, (b"x-forwarded-proto", b"http"))
    assert read_forwarded(both, PROXY, PROXIES) == ForwardedClaim("http")


def test_of_several_x_values_the_proxy_s_own_is_taken() -> None:
    headers = (
        (b"x-forwarded-host", b"evil.example"),
        (b"x-forwarded-host", b"evil.example, api.example"),
        (b"x-forwarded-proto", b"http,"),
    )
    assert read_forwarded(headers, PROXY, PROXIES) == ForwardedClaim(None, "api.example")


@pytest.mark.parametrize(
    ("lines", "claim"),
    [
        (["for=203.0.113.9;proto=https;host=a.example"], ForwardedClaim("https", "a.example")),
        (["FOR=x;Proto=HTTPS;HOST=a.example"], ForwardedClaim("HTTPS", "a.example")),
        (
            ['for="[2001:db8::1]:4711";host="a.example:8443"'],
            ForwardedClaim(None, "a.example:8443"),
        ),
        # the outermost trusted proxy has the word, what the client wrote itself has not
        (
            ["host=evil.example", "for=203.0.113.9;proto=https;host=a.example, for=10.0.0.7"],
            ForwardedClaim("https", "a.example"),
        ),
        (
            ['host=evil.example, for=203.0.113.9;host=a.example, for="[fd00::2]:80";proto=https'],
            ForwardedClaim("https", "a.example"),
        ),
        (["host=a.example, for=10.0.0.7:80;host=b.example"], ForwardedClaim(None, "a.example")),
        (["host=evil.example, for=unknown;proto=http"], ForwardedClaim("http")),
        (["host=evil.example, for=;proto=http"], ForwardedClaim("http")),
        (["host=a.example;host=b.example"], ForwardedClaim(None, "a.example")),
        (["for=10.0.0.7"], ForwardedClaim()),
        ([""], ForwardedClaim()),
    ],
)
def test_forwarded_elements_are_read_from_the_right(lines: list[str], claim: ForwardedClaim) -> None:
    assert read_forwarded(forwarded(*lines), PROXY, PROXIES) == claim


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"forwarded", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-prefix"]),
            st.binary(),
        )
    ),
    st.sampled_from(list(ForwardedFamily)),
)
def test_no_bytes_raise(headers: list[tuple[bytes, bytes]], family: ForwardedFamily) -> None:
    read_forwarded(headers, PROXY, TrustedProxies(NETWORKS, family))
