"""The service's settings: one frozen object, read once from `SERVICE_…` variables.

The only module of the service that reads the environment. A variable with our prefix that is not
known stops the start: a misspelt limit must not be silently without effect. Durations are written
as seconds (`20`, `0.5`), with a unit (`250ms`, `20s`, `30m`, `24h`, `7d`) or as ISO 8601 (`PT20S`).

`python -m service.settings` prints `docs/configuration.md`'s table.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import sys
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableSetting

PREFIX = "SERVICE_"
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def parse_duration(value: object) -> object:
    """Return seconds for `20`, `20s`, `1.5h`; anything else is left to pydantic (ISO 8601)."""
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        return timedelta(seconds=float(found[1]) * _UNITS[found[2] or "s"])
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]


def _span(default: str, low: str, high: str) -> Any:
    bounds: dict[str, Any] = {"ge": parse_duration(low), "le": parse_duration(high)}
    return Field(default=parse_duration(default), **bounds)


class SettingsError(Exception):
    """The settings cannot be used; the text names each variable and what is wrong with it."""


class Settings(BaseSettings):
    """Every setting of the service."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    # -- where it listens
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on, or `unix:<path>` for a Unix socket of mode 0600."""
    port: int = Field(default=50051, ge=0, le=65535)
    """TCP port; 0 takes a free one. Unused for a Unix socket."""
    allow_public: bool = False
    """Listen on an address other machines can reach. The service takes no tokens: the edge does."""

    # -- the model
    model_name: str = Field(
        default="local/smollm2-135m-instruct", pattern=r"^[^/\s]+/[^/\s]+$", max_length=200
    )
    """Name under which the model is served, `owner/name`."""
    model_path: str = ""
    """File or folder of the model. Empty: the demo model, which llama_cpp alone can run."""
    chat_template_file: str = ""
    """Jinja file of a chat template, used instead of the model's own. Empty: the model's own."""
    engine: Literal["llama_cpp", "exllamav2", "scripted"] = "llama_cpp"
    """What runs the model. `scripted` produces fixed text, for tests only."""
    engine_slots: int = Field(default=8, ge=1, le=256)
    """Predictions generated at the same time."""
    engine_context_tokens: int = Field(default=2048, ge=64, le=1_048_576)
    """Prompt and output tokens of one slot. Memory grows with slots times this."""
    engine_threads: int = Field(default=0, ge=0, le=1024)
    """Processor threads of the engine. 0: all cores."""
    engine_batch_tokens: int = Field(default=32, ge=16, le=16_384)
    """Prompt tokens a step feeds at most. Smaller: other streams wait less for a long prompt. On a CPU
    keep it below 64: greedy text then does not depend on how a prompt was split. exllamav2: 2048 unless set,
    in whole pages of 256."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the engine's adapter, as a JSON object; see its module."""
    hang_limit: Duration = _span("60s", "1s", "1h")
    """An engine that has work and shows no life for so long is killed and started again."""
    claim_limit: int = Field(default=3, ge=1, le=100)
    """Claims without new output after which a prediction fails: its prompt may kill engines."""

    # -- where predictions are kept
    store: Literal["sqlite", "memory"] = "sqlite"
    """`memory` loses everything with the process."""
    store_path: str = Field(default="var/tailrace.db", min_length=1)
    """The SQLite file; its folder is made."""
    retention_data: Duration = _span("1h", "0", "365d")
    """How long request and output stay after a prediction's end."""
    retention_record: Duration = _span("24h", "0", "3650d")
    """How long the rest of its record stays. At least `retention_data`."""

    # -- limits
    queue_limit: int = Field(default=100, ge=0, le=100_000)
    """Predictions that may wait for a slot; a further create is refused."""
    owner_limit: int = Field(default=50, ge=1, le=100_000)
    """Unfinished predictions that one owner, a tenant of the edge, may have; a further create is refused."""
    readers_limit: int = Field(default=16, ge=1, le=10_000)
    """Readers that may follow one prediction at a time."""
    run_limit: Duration = _span("30m", "1s", "24h")
    """From its creation, a prediction that is not over by then fails."""
    attach_grace: Duration = _span("10s", "0", "10m")
    """How long an attached prediction whose caller is not there waits for it, before it is canceled."""
    stall_limit: Duration = _span("20s", "0.05s", "1h")
    """A reader that takes nothing for so long is disconnected; it can resume."""
    drain: Duration = _span("25s", "0", "1h")
    """After a SIGTERM: how long running predictions may go on. The rest continues at the next start."""

    # -- webhooks
    webhook_secret_file: str = Field(default="var/webhook_secret", min_length=1)
    """File of the secrets that sign webhooks, `whsec_…`, one a line; made when it is missing. Calls are
    signed with each; the first is the one that callers are told."""
    webhook_allow_http: bool = False
    """Also call webhooks by plain http."""
    webhook_allow_private: bool = False
    """Also call webhooks on loopback and private addresses, and on any port."""

    # -- connections
    keepalive_time: Duration = _span("20s", "1s", "2h")
    """Silence after which a client's connection is probed by a ping."""
    keepalive_timeout: Duration = _span("10s", "1s", "10m")
    """How long the ping may stay unanswered; then the client counts as gone."""
    min_ping_interval: Duration = _span("10s", "0.01s", "10m")
    """How often clients may ping. One that pings more often is disconnected."""

    # -- logs
    log_format: Literal["auto", "console", "json"] = "auto"
    """`auto`: console on a terminal, else JSON. Always to standard error."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe level that is written."""
    log_content: bool = False
    """Also write `content.…` fields: prompts, outputs, foreign error texts. For debugging only."""

    @model_validator(mode="after")
    def _model_for_exllamav2(self) -> Self:
        if self.engine == "exllamav2" and not self.model_path:
            raise ValueError(f"{PREFIX}MODEL_PATH must name a model's folder with {PREFIX}ENGINE=exllamav2")
        return self

    @model_validator(mode="after")
    def _template_has_an_effect(self) -> Self:
        if self.engine == "scripted" and self.chat_template_file:
            raise ValueError(f"{PREFIX}CHAT_TEMPLATE_FILE has no effect with {PREFIX}ENGINE=scripted")
        return self

    @model_validator(mode="after")
    def _retention_in_order(self) -> Self:
        if self.retention_record < self.retention_data:
            raise ValueError(f"{PREFIX}RETENTION_RECORD must be at least {PREFIX}RETENTION_DATA")
        return self


def load() -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: a variable is unknown or out of bounds.
    """
    problems = [_unknown(name) for name in sorted(os.environ) if name.upper() not in _names() and _ours(name)]
    try:
        settings = Settings()
    except UnreadableSetting as error:  # not JSON where JSON is due; its text names the field
        raise SettingsError("\n".join([*problems, str(error)])) from error
    except ValidationError as error:
        problems += [_problem(e["loc"], e["msg"]) for e in error.errors(include_url=False)]
        raise SettingsError("\n".join(problems)) from error
    if problems:
        raise SettingsError("\n".join(problems))
    return settings


def describe(settings: BaseSettings, prefix: str = PREFIX) -> str:
    """Return one `NAME=value` line a setting, secrets hidden; a shell could read it back."""
    lines = []
    for name in type(settings).model_fields:
        lines.append(f"{prefix}{name.upper()}={shlex.quote(_shown(getattr(settings, name)))}")
    return "\n".join(lines) + "\n"


def markdown(kind: type[BaseSettings] = Settings, prefix: str = PREFIX) -> str:
    """Return the table of all settings for `docs/configuration.md`."""
    rows = ["| variable | default | bounds | meaning |", "|---|---|---|---|"]
    for name, field in kind.model_fields.items():
        default = _shown(field.get_default(call_default_factory=True))
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        shown = f"`{default}`" if default else "empty"
        rows.append(f"| `{prefix}{name.upper()}` | {shown} | {_bounds(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _names() -> frozenset[str]:
    return frozenset(PREFIX + name.upper() for name in Settings.model_fields)


def _ours(name: str) -> bool:
    return name.upper().startswith(PREFIX)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.upper(), sorted(_names()), n=1, cutoff=0.0)
    return f"{name} is not a setting. Did you mean {near[0]}?"


def _problem(location: tuple[int | str, ...], message: str) -> str:
    name = PREFIX + str(location[0]).upper() if location else ""
    return f"{name}: {message}" if name else message.removeprefix("Value error, ")


def _shown(value: object) -> str:
    match value:
        case SecretStr():
            return "**********" if value.get_secret_value() else ""
        case bool():
            return "1" if value else "0"
        case timedelta():
            return duration_text(value)
        case dict():
            return json.dumps(value)
        case _:
            return str(value)


def duration_text(span: timedelta) -> str:
    """Return the span in the largest unit that divides it: `30m`, `20s`, `250ms`."""
    total_ms = round(span / timedelta(milliseconds=1))
    for unit in ("d", "h", "m", "s"):
        size_ms = round(_UNITS[unit] * 1000)
        if total_ms and total_ms % size_ms == 0:
            return f"{total_ms // size_ms}{unit}"
    return f"{total_ms}ms" if total_ms else "0s"


def _bounds(field: FieldInfo) -> str:
    """Say what values a field takes, in words or as a range."""
    if field.annotation is bool:
        return "0 or 1"
    if get_origin(field.annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(field.annotation))
    if get_origin(field.annotation) is dict:
        return "JSON"
    low = high = ""
    for rule in field.metadata:
        low = _shown(rule.ge) if hasattr(rule, "ge") else low
        high = _shown(rule.le) if hasattr(rule, "le") else high
    return f"{low} to {high}" if low or high else "text"


if __name__ == "__main__":
    sys.stdout.write(markdown())
