"""Settings: what they take, what they refuse and how they show themselves."""

from __future__ import annotations

import os
import shlex
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from pydantic_settings import BaseSettings

from service.settings import (
    Settings,
    SettingsError,
    describe,
    duration_text,
    load,
    markdown,
    parse_duration,
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.upper().startswith("SERVICE_"):
            monkeypatch.delenv(name)


def test_defaults_are_sound_and_frozen():
    settings = load()
    assert settings == Settings()
    assert (settings.host, settings.port, settings.stall_limit) == ("127.0.0.1", 50051, timedelta(seconds=20))
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1


def test_variables_are_read_in_any_case(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERVICE_PORT", "0")
    monkeypatch.setenv("service_drain", "1.5m")
    monkeypatch.setenv("SERVICE_ALLOW_PUBLIC", "1")
    settings = load()
    assert (settings.port, settings.drain, settings.allow_public) == (0, timedelta(seconds=90), True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SERVICE_PROT", "1", "SERVICE_PROT is not a setting. Did you mean SERVICE_PORT?"),
        ("SERVICE_STAL_LIMIT", "1", "Did you mean SERVICE_STALL_LIMIT?"),
        ("SERVICE_", "1", "is not a setting"),
        ("SERVICE_PORT", "65536", "SERVICE_PORT: Input should be less than or equal to 65535"),
        ("SERVICE_PORT", "", "SERVICE_PORT: "),
        ("SERVICE_DRAIN", "-1", "SERVICE_DRAIN: "),
        ("SERVICE_DRAIN", "soon", "SERVICE_DRAIN: "),
        ("SERVICE_RUN_LIMIT", "25h", "SERVICE_RUN_LIMIT: "),
        ("SERVICE_ENGINE", "gpt", "SERVICE_ENGINE: "),
        ("SERVICE_MODEL_NAME", "no-owner", "SERVICE_MODEL_NAME: "),
        ("SERVICE_RETENTION_DATA", "48h", "SERVICE_RETENTION_RECORD must be at least"),
        ("SERVICE_ENGINE_OPTIONS", "{", "engine_options"),
    ],
)
def test_what_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        load()
    assert message in str(refused.value)


def test_a_template_file_without_effect_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERVICE_CHAT_TEMPLATE_FILE", "a.jinja")
    assert load().chat_template_file == "a.jinja"
    monkeypatch.setenv("SERVICE_ENGINE", "scripted")
    with pytest.raises(SettingsError, match="SERVICE_CHAT_TEMPLATE_FILE has no effect"):
        load()


def test_all_problems_come_at_once(monkeypatch: pytest.MonkeyPatch):
    for name in ("SERVICE_PORTS", "SERVICE_PORT", "SERVICE_DRAIN"):
        monkeypatch.setenv(name, "x")
    with pytest.raises(SettingsError) as refused:
        load()
    assert len(str(refused.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20),
        ("0.5", 0.5),
        ("250ms", 0.25),
        ("20s", 20),
        ("30 m", 1800),
        ("24h", 86_400),
        ("7d", 604_800),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, seconds: float):
    assert parse_duration(text) == timedelta(seconds=seconds)


@given(st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)))
def test_a_duration_is_read_back_as_it_is_shown(span: timedelta):
    assert parse_duration(duration_text(span)) == span


def test_the_printed_settings_can_be_read_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SERVICE_DRAIN", "0.25")
    monkeypatch.setenv("SERVICE_MODEL_PATH", "/a b/c")
    monkeypatch.setenv("SERVICE_ENGINE_OPTIONS", '{"a": "it\'s"}')
    settings = load()
    for assignment in shlex.split(describe(settings)):
        name, _, value = assignment.partition("=")
        monkeypatch.setenv(name, value)
    assert load() == settings


def test_secrets_are_hidden():
    class Secret(BaseSettings):
        key: SecretStr = SecretStr("hunter2")
        none: SecretStr = SecretStr("")

    assert describe(Secret(), "X_") == "X_KEY='**********'\nX_NONE=''\n"
    assert "hunter2" not in markdown(Secret, "X_")


def test_the_table_has_a_full_row_for_each_setting():
    rows = markdown().splitlines()[2:]
    assert len(rows) == len(Settings.model_fields)
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4 and all(cells), row
        assert "Undefined" not in row and "typing" not in row
