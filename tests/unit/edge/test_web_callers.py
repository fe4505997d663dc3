"""Which names and pages reach an edge without tokens: `edge.auth.web_callers`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.auth.web_callers import WebCallers, is_loopback

CALLERS = WebCallers(["Llm.Example", "10.0.0.5"], ["https://app.example"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:1", "127.9.9.9", "[::1]:8080", "[::1]",
     "a.localhost", "llm.example", "LLM.example:443", "10.0.0.5:80"],
)  # fmt: skip
def test_our_own_names(host: str) -> None:
    assert CALLERS.admits_host(host)
    assert CALLERS.admits_origin(f"http://{host}")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "", "10.0.0.6",
     "0.0.0.0", "[::]", "x.llm.example", "127.0.0.1@evil.example", "evil.example#localhost", "2130706433"],
)  # fmt: skip
def test_names_of_others(host: str) -> None:
    assert not CALLERS.admits_host(host)
    assert not CALLERS.admits_origin(f"http://{host}")


def test_origins() -> None:
    assert CALLERS.admits_origin("https://app.example") and CALLERS.admits_origin("HTTPS://APP.example")
    for other in ("http://app.example", "null", "", "*", "file://", "https://app.example:444", "localhost"):
        assert not CALLERS.admits_origin(other)
        assert WebCallers(origins=["*"]).admits_origin(other)


@given(st.text())
def test_never_raises(text: str) -> None:
    CALLERS.admits_host(text)
    CALLERS.admits_origin(text)
    assert is_loopback(text) in (True, False)
