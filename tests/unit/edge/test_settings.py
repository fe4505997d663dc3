"""The edge's settings: what the environment may say, and what stops the start."""

import stat
from datetime import timedelta
from pathlib import Path

import pytest

from edge.settings import Settings, SettingsError, describe, load_settings, markdown
from edge.stream_secret import load_stream_secret


def test_defaults_are_safe() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port, settings.service_address) == ("127.0.0.1", 8080, "127.0.0.1:50051")


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("250ms", 0.25), ("20", 20), ("0.5", 0.5), ("0.1m", 6)]
)
def test_durations(text: str, seconds: float) -> None:
    assert load_settings({"EDGE_KEEPALIVE": text}).keepalive == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EDGE_KEEPALIVE", "soon"),
        ("EDGE_KEEPALIVE", "40s"),
        ("EDGE_KEEPALIVE", "-1s"),
        ("EDGE_PORT", "70000"),
        ("EDGE_HOST", "0.0.0.0"),
        ("EDGE_HOST", "::"),
        ("EDGE_HOST", "10.0.0.1"),
        ("EDGE_HOST", "example.com"),
        ("EDGE_PUBLIC_URL", "example.com"),
        ("EDGE_TRUSTED_PROXIES", "10.0.0.0/33"),
        ("EDGE_STREAM_SECRET", "short"),
        ("EDGE_LOG_FORMAT", "xml"),
    ],
)
def test_a_bad_value_stops_the_start_naming_it(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: value})


def test_an_unknown_setting_stops_the_start_naming_the_nearest() -> None:
    with pytest.raises(SettingsError, match="EDGE_PROT; did you mean EDGE_PORT"):
        load_settings({"EDGE_PROT": "1"})
    load_settings({"SERVICE_PROT": "1"})


def test_lists_are_split_at_commas() -> None:
    settings = load_settings({"EDGE_TRUSTED_PROXIES": "127.0.0.1, 10.0.0.0/8"})
    assert settings.proxies().trusts("10.1.2.3") and not settings.proxies().trusts("11.1.2.3")


def test_secrets_are_not_shown() -> None:
    text = describe(load_settings({"EDGE_STREAM_SECRET": "0123456789abcdef"}))
    assert "0123456789abcdef" not in text and "EDGE_STREAM_SECRET=(set)" in text


def test_every_field_is_documented() -> None:
    table = markdown()
    for name, spec in Settings.model_fields.items():
        assert spec.description and f"`EDGE_{name.upper()}`" in table


def test_the_secret_file_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "var" / "secret"
    settings = load_settings({"EDGE_STREAM_SECRET_FILE": str(path)})
    secret = load_stream_secret(settings)
    assert len(secret) >= 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_stream_secret(settings) == secret
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_a_secret_file_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("x" * 32)
    path.chmod(0o644)
    with pytest.raises(SettingsError, match="600"):
        load_stream_secret(load_settings({"EDGE_STREAM_SECRET_FILE": str(path)}))


def test_a_given_secret_needs_no_file(tmp_path: Path) -> None:
    settings = load_settings(
        {"EDGE_STREAM_SECRET": "0123456789abcdef", "EDGE_STREAM_SECRET_FILE": str(tmp_path / "none")}
    )
    assert load_stream_secret(settings) == b"0123456789abcdef"
    assert not (tmp_path / "none").exists()
