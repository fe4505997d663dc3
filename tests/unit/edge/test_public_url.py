"""Absolute URLs: from configuration, trusted proxies, or a valid Host."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.protocol.forwarded import RawHeaders, TrustedProxies, parse_networks
from edge.protocol.public_url import (
    InvalidHost,
    PublicBase,
    PublicUrlError,
    RequestOrigin,
    parse_prefix,
    parse_public_base,
    public_base,
)

PROXY = "10.0.0.1"
CLIENT = "203.0.113.9"
PROXIES = TrustedProxies(parse_networks(["10.0.0.0/8"]))
HOST: RawHeaders = ((b"host", b"edge.internal:8000"),)
FORWARDED: RawHeaders = (
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-host", b"api.example"),
    (b"x-forwarded-prefix", b"/llm"),
)


def url(origin: RequestOrigin, configured: PublicBase | None = None) -> str:
    return public_base(origin, configured, PROXIES).url("/v1/predictions/x")


@pytest.mark.parametrize(
    ("text", "base"),
    [
        ("https://api.example", PublicBase("https", "api.example")),
        ("https://api.example/", PublicBase("https", "api.example")),
        ("HTTP://API.example:8000/llm/", PublicBase("http", "api.example:8000", "/llm")),
        ("https://h/a/b", PublicBase("https", "h", "/a/b")),
        ("http://[::1]:8000", PublicBase("http", "[::1]:8000")),
        ("http://my_host.", PublicBase("http", "my_host.")),
    ],
)
def test_configured_base_is_read(text: str, base: PublicBase) -> None:
    assert parse_public_base(text) == base


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example",
        "//api.example",
        "ftp://api.example",
        "https://",
        "https:///llm",
        "https://user:pass@api.example",
        "https://api.example?x=1",
        "https://api.example#top",
        "https://api.example:0",
        "https://api.example:65536",
        "https://api.example:",
        "https://a b",
        "https://a..b",
        "https://[::1",
        "https://[:::1]",
        "https://\u212aelvin",
        "https://" + "a." * 128 + "b",
        "https://h//llm",
        "https://h/llm//",
        "https://h/../x",
        "https://h/a/.",
        "https://h/a b",
    ],
)
def test_text_that_is_no_base_is_refused(text: str) -> None:
    with pytest.raises(PublicUrlError):
        parse_public_base(text)


@pytest.mark.parametrize(
    ("text", "prefix"), [("", ""), ("/", ""), ("/llm", "/llm"), ("/a/b/", "/a/b"), ("/.a", "/.a")]
)
def test_prefix_has_no_trailing_slash(text: str, prefix: str) -> None:
    assert parse_prefix(text) == prefix


@pytest.mark.parametrize("text", ["llm", "//", "/a?b", "/..", "/a/../b", "/é", "/" + "a" * 256])
def test_text_that_is_no_prefix_is_refused(text: str) -> None:
    with pytest.raises(PublicUrlError):
        parse_prefix(text)


def test_configured_base_wins_over_everything_the_request_says() -> None:
    configured = PublicBase("https", "public.example", "/llm")
    expected = "https://public.example/llm/v1/predictions/x"
    for headers in ((*HOST, *FORWARDED), ((b"host", b"bad host"),), ()):
        origin = RequestOrigin("http", headers, PROXY, "/other")
        assert url(origin, configured) == expected


def test_trusted_proxy_names_scheme_host_and_prefix() -> None:
    origin = RequestOrigin("http", (*HOST, *FORWARDED), PROXY)
    assert url(origin) == "https://api.example/llm/v1/predictions/x"


def test_spoofed_headers_of_a_client_change_nothing() -> None:
    origin = RequestOrigin("http", (*HOST, *FORWARDED), CLIENT)
    assert url(origin) == "http://edge.internal:8000/v1/predictions/x"


@pytest.mark.parametrize("root_path", ["/llm", "/llm/", "/other"])
def test_prefix_appears_once(root_path: str) -> None:
    origin = RequestOrigin("http", (*HOST, *FORWARDED), PROXY, root_path)
    assert url(origin) == "https://api.example/llm/v1/predictions/x"


def test_root_path_is_the_prefix_when_no_proxy_names_one() -> None:
    assert url(RequestOrigin("https", HOST, CLIENT, "/llm")) == (
        "https://edge.internal:8000/llm/v1/predictions/x"
    )


@pytest.mark.parametrize(
    "header",
    [
        (b"x-forwarded-proto", b"javascript"),
        (b"x-forwarded-host", b"evil.example/path"),
        (b"x-forwarded-host", b"user@evil.example"),
        (b"x-forwarded-host", b"\xe4.example"),
        (b"x-forwarded-prefix", b"//evil.example"),
        (b"x-forwarded-prefix", b"/a?b"),
    ],
)
def test_forwarded_value_that_fits_no_url_is_ignored(header: tuple[bytes, bytes]) -> None:
    origin = RequestOrigin("http", (*HOST, header), PROXY, "/own")
    assert url(origin) == "http://edge.internal:8000/own/v1/predictions/x"


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ((b"host", b""),),
        ((b"host", b"a"), (b"host", b"b")),
        ((b"host", b"a/b"),),
        ((b"host", b"a@b"),),
        ((b"host", b"a:99999"),),
        ((b"host", b"a\x00"),),
        ((b"host", b"[fe80::1%25eth0]"),),
        ((b"host", b"a, b"),),
    ],
)
def test_request_without_one_valid_host_is_refused(headers: RawHeaders) -> None:
    with pytest.raises(InvalidHost):
        url(RequestOrigin("http", headers, CLIENT))


def test_scheme_of_another_protocol_is_refused() -> None:
    with pytest.raises(PublicUrlError, match="scheme"):
        url(RequestOrigin("ws", HOST, CLIENT))


@pytest.mark.parametrize("path", ["", "v1", "/a b", "/a\n", "/é"])
def test_path_that_fits_no_url_is_refused(path: str) -> None:
    with pytest.raises(PublicUrlError, match="path"):
        PublicBase("https", "h").url(path)


@given(st.text(), st.text(), st.binary())
def test_any_request_gives_a_plain_base_or_is_refused(root_path: str, scheme: str, value: bytes) -> None:
    names = (b"host", b"x-forwarded-host", b"x-forwarded-prefix", b"x-forwarded-proto")
    headers = tuple((name, value) for name in names)
    for tried in (scheme, "http"):
        try:
            base = public_base(RequestOrigin(tried, headers, PROXY, root_path), None, PROXIES)
        except (InvalidHost, PublicUrlError):
            continue
        assert re.fullmatch(r"https?://[!-.0-;A-~]+(/[!-.0-~]+)*/", base.url("/"))
