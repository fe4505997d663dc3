"""URLs of webhooks: what is read, and what is refused before anything is resolved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.webhook_target import (
    BadTarget,
    TargetPolicy,
    WebhookTarget,
    allowed_addresses,
    host_of,
    read_target,
)
from tests.support.hostile_urls import HOSTILE_URLS

STRICT = TargetPolicy()
OPEN = TargetPolicy(allow_http=True, allow_private=True)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://h.example", WebhookTarget("https", "h.example", 443, "/")),
        ("HTTPS://H.Example/Hook?a=B", WebhookTarget("https", "h.example", 443, "/Hook?a=B")),
        ("https://h.example:443?x", WebhookTarget("https", "h.example", 443, "/?x")),
        ("https://h.example:80/", WebhookTarget("https", "h.example", 80, "/")),
        ("https://8.8.8.8/x", WebhookTarget("https", "8.8.8.8", 443, "/x")),
        ("https://[2606:4700::1111]/x", WebhookTarget("https", "2606:4700::1111", 443, "/x")),
        ("https://xn--bcher-kva.example/%7E", WebhookTarget("https", "xn--bcher-kva.example", 443, "/%7E")),
        ("https://a_b.example/@x//y", WebhookTarget("https", "a_b.example", 443, "/@x//y")),
    ],
)
def test_what_is_read(url: str, target: WebhookTarget) -> None:
    assert read_target(url, STRICT) == target


def test_the_host_header_is_short_where_it_can_be() -> None:
    assert read_target("https://h.example", STRICT).authority == "h.example"
    assert read_target("https://h.example:80", STRICT).authority == "h.example:80"
    assert read_target("http://[::1]:8000", OPEN).authority == "[::1]:8000"


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_hostile_urls_are_refused(url: str) -> None:
    with pytest.raises(BadTarget):
        read_target(url, STRICT)


@pytest.mark.parametrize("url", ["http://h.example", "http://127.0.0.1:8000/x", "https://localhost:1"])
def test_settings_open_http_and_private_targets(url: str) -> None:
    assert read_target(url, OPEN)
    with pytest.raises(BadTarget):
        read_target(url, STRICT)


def test_metadata_services_stay_closed_whatever_the_settings() -> None:
    for url in ("http://169.254.169.254/latest", "http://[fd00:ec2::254]/", "http://100.100.100.200/"):
        with pytest.raises(BadTarget):
            read_target(url, OPEN)


@given(st.text(max_size=60))
def test_reading_never_fails_otherwise(text: str) -> None:
    for url in (text, f"https://{text}", f"https://h.example/{text}", f"https://{text}@h.example"):
        try:
            target = read_target(url, STRICT)
        except BadTarget:
            continue
        assert target.path.isascii() and " " not in target.path and "@" not in target.host
        assert host_of(url)


def test_every_address_of_a_name_must_be_allowed() -> None:
    assert allowed_addresses(["8.8.8.8", "2606:4700::1111"], STRICT) == ("8.8.8.8", "2606:4700::1111")
    for found in ([], ["8.8.8.8", "127.0.0.1"], ["fe80::1%eth0"], ["8.8.8.8", "nonsense"], ["::"]):
        with pytest.raises(BadTarget):
            allowed_addresses(found, STRICT)


def test_host_of_never_raises() -> None:
    assert host_of("https://H.example:80/x") == "h.example:80"
    assert host_of("nonsense") == ""
