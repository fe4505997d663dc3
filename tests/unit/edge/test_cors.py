"""CORS: `edge.protocol.cors`. Cases B093, B094."""

import pytest

from edge.protocol.cors import CorsPolicy, parse_origin

APP = "https://app.example"
STREAM = "/v1/streams/abc"
ASKED = [
    "last-event-id", "authorization", "prefer", "cancel-after", "idempotency-key", "x-api-key",
    "anthropic-version", "content-type", "x-stainless-retry-count", "x-stainless-lang",
]  # fmt: skip


def header(lines: list[tuple[str, str]], name: str) -> str | None:
    found = [value for key, value in lines if key == name]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("origin", [None, APP, "null"])
@pytest.mark.parametrize("path", [STREAM, "/streams/abc", "/llm/v1/streams/abc", STREAM + "/"])
def test_any_page_may_read_a_stream_without_credentials(path: str, origin: str | None) -> None:
    for policy in (CorsPolicy(), CorsPolicy([APP])):
        lines = policy.answer_headers(path, origin)
        assert header(lines, "access-control-allow-origin") == "*"
        assert header(lines, "access-control-allow-credentials") is None
        assert header(lines, "vary") is None
        assert {"x-request-id", "retry-after"} <= set(
            (header(lines, "access-control-expose-headers") or "").split(", ")
        )


def test_without_a_list_no_page_may_use_the_rest() -> None:
    assert CorsPolicy().answer_headers("/v1/predictions", APP) == []
    assert CorsPolicy().preflight_headers("/v1/predictions", APP, "authorization") == []


def test_the_list_admits_its_origins_alone() -> None:
    policy = CorsPolicy([APP])
    lines = policy.answer_headers("/v1/predictions", APP)
    assert (header(lines, "access-control-allow-origin"), header(lines, "vary")) == (APP, "Origin")
    assert header(lines, "access-control-allow-credentials") is None
    for other in (None, "https://app.example.evil", "http://app.example", "null", "*", ""):
        lines = policy.answer_headers("/v1/predictions", other)
        assert lines == [("vary", "Origin")]
        assert policy.preflight_headers("/v1/predictions", other, "") == []


def test_a_star_admits_all() -> None:
    lines = CorsPolicy(["*"]).answer_headers("/v1/predictions", "null")
    assert (header(lines, "access-control-allow-origin"), header(lines, "vary")) == ("*", None)


@pytest.mark.parametrize("path", [STREAM, "/v1/predictions", "/v1/predictions/x"])
def test_a_preflight_allows_what_the_sdks_send(path: str) -> None:
    lines = CorsPolicy([APP]).preflight_headers(path, APP, ", ".join(ASKED).upper())
    allowed = (header(lines, "access-control-allow-headers") or "").split(", ")
    assert set(ASKED) <= set(allowed) and len(set(allowed)) == len(allowed)
    assert "GET" in (header(lines, "access-control-allow-methods") or "")
    assert ("PUT" in (header(lines, "access-control-allow-methods") or "")) == (path != STREAM)


def test_nothing_that_was_asked_is_echoed_but_the_made_up_names() -> None:
    asked = (
        "x-evil, x-stainless-\r\nset-cookie: a, x-stainless-" + "a" * 50 + ", x-stainless-ok" + ", x" * 500
    )
    lines = CorsPolicy([APP]).preflight_headers("/v1/predictions", APP, asked)
    allowed = header(lines, "access-control-allow-headers") or ""
    assert (
        "x-stainless-ok" in allowed and "evil" not in allowed and "\n" not in allowed and len(allowed) < 1000
    )


@pytest.mark.parametrize(
    ("text", "origin"),
    [("*", "*"), ("https://App.example", APP), ("http://localhost:3000", "http://localhost:3000"),
     ("http://[::1]:3000", "http://[::1]:3000")],
)  # fmt: skip
def test_an_origin_is_scheme_and_host(text: str, origin: str) -> None:
    assert parse_origin(text) == origin


@pytest.mark.parametrize(
    "text", ["", "app.example", "https://app.example/", "null", "ftp://a", "https://*.example"]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(ValueError):
        parse_origin(text)
