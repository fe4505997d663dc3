"""Owns the edge's settings: the only module that reads the environment.

Every field is an environment variable `EDGE_` + its name. An unknown `EDGE_` variable stops the
start, since a setting that is misspelt is a setting that is not applied. Durations are written
`250ms`, `15s`, `5m`, `1h`, or as plain seconds.
"""

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from edge.protocol.cors import parse_origin
from edge.protocol.forwarded import TrustedProxies, parse_networks
from edge.protocol.public_url import PublicBase, PublicUrlError, parse_public_base
from edge.replicate.deployments import Deployments, parse_deployments

PREFIX: Final = "EDGE_"

DEFAULT_TOKENS_FILE: Final = "var/edge_tokens.json"
"""Where the command for tokens keeps them if nothing else is said. The edge reads no file by itself."""

_HOST_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")

_DURATION: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)?")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class SettingsError(Exception):
    """The environment cannot be taken; the message is for whoever starts the edge."""


def _parse_duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError("write a duration as 250ms, 15s, 5m or 1h")
    return timedelta(seconds=float(match[1]) * _UNITS_S[match[2]])


def _parse_list(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _read_deployments(value: object) -> object:
    """Take JSON, which begins with a brace, or the path of a file of it."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        return {}
    if text.startswith("{"):
        return parse_deployments(text)
    try:
        return parse_deployments(Path(text).read_bytes())
    except OSError as error:
        raise ValueError(f"{text} cannot be read: {error.strerror}") from None


Duration = Annotated[timedelta, BeforeValidator(_parse_duration)]
_ZERO: Final = timedelta(0)
_MILLISECOND: Final = timedelta(milliseconds=1)
_HOUR: Final = timedelta(hours=1)


class Settings(BaseSettings):
    """Everything that can be set about one edge process."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on. One that other machines can reach is taken with `EDGE_TOKENS_FILE` only."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""

    service_address: str = "127.0.0.1:50051"
    """Where the gRPC service is: `host:port`, or `unix:/path`."""

    public_url: str = ""
    """Base of the URLs in answers, like `https://example.com/llm`. Empty: as each request says."""

    trusted_proxies: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)] = ()
    """Addresses and networks, by comma, whose `Forwarded` and `X-Forwarded-*` headers are believed."""

    deployments: Annotated[Deployments, NoDecode, BeforeValidator(_read_deployments)] = Field(
        default_factory=dict
    )
    """Models under names of their own, with default inputs and limits: JSON, or the path of a JSON file."""

    tokens_file: Annotated[str, Field(validate_default=True)] = ""
    """File of API tokens (`make token`); every request then needs one. Empty: no tokens, loopback only,
    and everybody sees everything. Read again when it changes."""

    token_creates_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 600
    """Predictions that one token may create a minute, unless the token says otherwise."""

    token_requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = 3000
    """Other requests that one token may make a minute, unless the token says otherwise."""

    token_concurrency: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Requests of one token that may be open at once, waits included, streams not, unless the token says
    otherwise."""

    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)] = ()
    """Names, by comma and without port, that `Host` may have beside loopback ones and that of
    `EDGE_PUBLIC_URL`, where there are no tokens: against DNS rebinding."""

    cors_origins: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)] = ()
    """Origins, by comma, whose web pages may use the API, like `https://app.example`; `*` for all. Streams
    can be read from any origin, as their URL is the credential."""

    keepalive: Annotated[Duration, Field(ge=_MILLISECOND, le=timedelta(seconds=25))] = timedelta(seconds=15)
    """Longest silence on a live stream. Replicate's Python client gives up after 30 s."""

    hold_after_done: Annotated[Duration, Field(ge=_ZERO, le=_HOUR)] = timedelta(seconds=30)
    """How long a stream stays open after its last event, for the reader to close first."""

    send_deadline: Annotated[Duration, Field(ge=_MILLISECOND, le=_HOUR)] = timedelta(seconds=20)
    """How long a stream's reader may take nothing before it is dropped. It can resume."""

    link: bool = True
    """Carry all live streams over one call to the service. Off: one call a stream, dearer per token."""

    retry_budget: Annotated[Duration, Field(ge=_ZERO, le=_HOUR)] = timedelta(seconds=30)
    """How long a stream whose service is gone keeps trying, counted from its last event."""

    call_deadline: Annotated[Duration, Field(ge=_MILLISECOND, le=_HOUR)] = timedelta(seconds=10)
    """For one call to the service, beside the wait it may ask for."""

    call_retry_budget: Annotated[Duration, Field(ge=_ZERO, le=_HOUR)] = timedelta(seconds=5)
    """How long one call is tried again while the service is gone, before the caller is told 503."""

    body_max_bytes: Annotated[int, Field(ge=1024, le=7 * 1024 * 1024)] = 1024 * 1024
    """Largest request body; below the 8 MiB that a gRPC message may have."""

    body_deadline: Annotated[Duration, Field(ge=_MILLISECOND, le=_HOUR)] = timedelta(seconds=20)
    """For a request body to arrive."""

    header_deadline: Annotated[Duration, Field(ge=_MILLISECOND, le=_HOUR)] = timedelta(seconds=10)
    """For a request's headers to arrive."""

    default_max_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    """Output tokens of an OpenAI chat or response that names no limit; cut to what the context has room
    for. Some engines reserve memory for all of them."""

    idle: Annotated[Duration, Field(ge=timedelta(seconds=1), le=_HOUR)] = timedelta(seconds=5)
    """How long a connection may wait for its next request; rounded to whole seconds."""

    drain_notice: Annotated[Duration, Field(ge=_ZERO, le=_HOUR)] = _ZERO
    """At shutdown, between `/readyz` saying no and streams being told to go. Behind a load balancer,
    as long as it takes to notice: 5s suits Kubernetes."""

    drain_spread: Annotated[Duration, Field(ge=_ZERO, le=_HOUR)] = timedelta(seconds=3)
    """At shutdown, streams end at random moments within it."""

    drain_deadline: Annotated[Duration, Field(ge=timedelta(seconds=1), le=_HOUR)] = timedelta(seconds=10)
    """At shutdown, for what is still being answered; rounded to whole seconds. Then it is cut."""

    stream_secret: SecretStr = SecretStr("")
    """Secret that signs stream URLs, at least 16 bytes; the same on all edges. Empty: the file's."""

    stream_secret_file: Path = Path("var/edge_stream_secret")
    """File of the secret, made with a random one and mode 0600 when it is missing."""

    log_format: Literal["console", "json"] = "console"
    """`console` for people, `json` for one JSON object a line."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level that is logged."""

    @field_validator("host")
    @classmethod
    def _check_host(cls, value: str) -> str:
        if value == "localhost":
            return value
        try:
            ipaddress.ip_address(value)
        except ValueError:
            raise ValueError("give an IP address, or localhost") from None
        return value

    @field_validator("tokens_file")
    @classmethod
    def _check_reach(cls, value: str, info: ValidationInfo) -> str:
        host = info.data.get("host", "127.0.0.1")
        if not value and host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise ValueError(
                f"EDGE_HOST={host} can be reached from elsewhere, and there are no API tokens: make one with"
                f" `make token` and set EDGE_TOKENS_FILE={DEFAULT_TOKENS_FILE}, or listen on 127.0.0.1"
            )
        return value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(parse_origin(origin) for origin in value)

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name} is no host name; give it without scheme and port")
        return value

    @field_validator("public_url")
    @classmethod
    def _check_public_url(cls, value: str) -> str:
        if value:
            try:
                parse_public_base(value)
            except PublicUrlError as error:
                raise ValueError(str(error)) from None
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_networks(value)
        return value

    @field_validator("stream_secret")
    @classmethod
    def _check_secret(cls, value: SecretStr) -> SecretStr:
        if 0 < len(value.get_secret_value().encode()) < 16:
            raise ValueError("needs at least 16 bytes")
        return value

    def public_base(self) -> PublicBase | None:
        """Return the configured base, if there is one."""
        return parse_public_base(self.public_url) if self.public_url else None

    def admitted_hosts(self) -> tuple[str, ...]:
        """Return the names, without port, that `Host` may have beside loopback ones."""
        base = self.public_base()
        own = () if base is None else (re.sub(r":[0-9]+$", "", base.authority).strip("[]"),)
        return (*self.allowed_hosts, *own)

    def proxies(self) -> TrustedProxies:
        """Return whose forwarding headers are believed."""
        return TrustedProxies(parse_networks(self.trusted_proxies))


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of the environment (by default the process's). Raises SettingsError."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    given = os.environ if environment is None else environment
    for name in sorted(given):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise SettingsError(f"unknown setting {name}{hint}")
    try:
        if environment is None:
            return Settings()
        fields = {
            name: given[PREFIX + name.upper()]
            for name in Settings.model_fields
            if PREFIX + name.upper() in given
        }
        return Settings.model_validate(fields)
    except ValidationError as error:
        lines = (f"{PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']}" for fault in error.errors())
        raise SettingsError("\n".join(lines)) from None


def describe(settings: Settings) -> str:
    """Return the settings as `NAME=value` lines, secrets hidden."""
    return "\n".join(
        f"{PREFIX}{name.upper()}={_written(getattr(settings, name))}" for name in Settings.model_fields
    )


def markdown() -> str:
    """Return the settings as a Markdown table, from the fields and their docstrings."""
    rows = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for name, spec in Settings.model_fields.items():
        meaning = " ".join((spec.description or "").split())
        default = _written(spec.get_default(call_default_factory=True))
        rows.append(f"| `{PREFIX}{name.upper()}` | `{default}` | {meaning} |")
    return "\n".join(rows) + "\n"


def _written(value: object) -> str:
    match value:
        case timedelta():
            seconds = value.total_seconds()
            return f"{seconds:g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:g}ms"
        case dict() | tuple():
            return ",".join(map(str, value))
        case SecretStr():
            return "(set)" if value.get_secret_value() else ""
        case _:
            return str(value)
